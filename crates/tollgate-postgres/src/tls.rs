//! TLS for connections to PostgreSQL. Certificates are always verified; `sslmode` of the URL decides whether TLS is used at all.

use rustls::ClientConfig;
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::{Error, ErrorKind};
use tollgate_transport::tls::{ClientTls, TlsOptions};

/// Returns a connector that trusts the certificates in `authority`, or those of the operating system.
pub(crate) fn connector(authority: Option<&[u8]>) -> Result<MakeRustlsConnect, Error> {
    let options =
        authority.map_or_else(TlsOptions::default, |pem| TlsOptions::default().authority(pem));
    let tls = ClientTls::new(&options).map_err(|error| {
        let text = format!(
            "the certificate authority for PostgreSQL cannot be used: it {}; give it as PEM",
            error.reason
        );
        Error::new(ErrorKind::Invalid, text)
    })?;
    Ok(MakeRustlsConnect::new(ClientConfig::clone(&tls.config())))
}
