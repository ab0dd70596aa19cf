//! TLS by rustls with ring. Certificates are always checked; `sslmode` of the url says whether TLS is used at all.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::{Error, ErrorKind};

/// Connects with the certificates in `authority`, or else with the machine's own.
pub(crate) fn connector(authority: Option<&[u8]>) -> Result<MakeRustlsConnect, Error> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| unreadable(&error.to_string()))?;
                roots.add(certificate).map_err(|error| unreadable(&error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(unreadable("it holds no certificate"));
            }
        }
        None => {
            // What the machine has and cannot be read is left out; a server that needs it is refused.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unreadable(&error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn unreadable(why: &str) -> Error {
    Error::new(
        ErrorKind::Invalid,
        format!("the certificate authority for PostgreSQL cannot be used: {why}; give it as PEM"),
    )
}
