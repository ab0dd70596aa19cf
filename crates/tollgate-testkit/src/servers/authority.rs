//! A certificate authority for servers with TLS.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

use super::Fault;

#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Result<Self, Fault> {
        let mut params = CertificateParams::new(Vec::new()).map_err(|error| failed(&error))?;
        // With the same subject in both, OpenSSL takes an issued certificate for self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority for tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let pem = params.self_signed(&key).map_err(|error| failed(&error))?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Returns the certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Puts a certificate for 127.0.0.1 and its key into `folder`, as `server.crt` and `server.key`.
    pub fn issue(&self, folder: &Path) -> Result<(), Fault> {
        self.issue_as(folder, |_| ())
    }

    /// The same, with a certificate that was valid once.
    pub fn issue_expired(&self, folder: &Path) -> Result<(), Fault> {
        self.issue_as(folder, |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
    }

    /// The same, with a certificate for `host` and no other.
    pub fn issue_for(&self, host: &str, folder: &Path) -> Result<(), Fault> {
        let name = host.try_into().map_err(|error| failed(&error))?;
        self.issue_as(folder, |params| params.subject_alt_names = vec![SanType::DnsName(name)])
    }

    fn issue_as(
        &self,
        folder: &Path,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<(), Fault> {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
        change(&mut params);
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|error| failed(&error))?;
        let files = [("server.crt", certificate.pem()), ("server.key", key.serialize_pem())];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}

fn failed(error: &dyn std::error::Error) -> Fault {
    Fault::new(format!("could not make a certificate: {error}"))
}
