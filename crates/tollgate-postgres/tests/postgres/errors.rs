//! Every error has its own words and a next step, and none shows a secret.

use tollgate::{Error, ErrorKind};
use tollgate_postgres::{Options, Postgres};

use super::{TestDatabase, acquire, hourly};

async fn refused(options: Options) -> Error {
    Postgres::open(options).await.unwrap_err()
}

fn all_text(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(" {inner} {inner:?}"));
        cause = inner.source();
    }
    text
}

#[tokio::test]
async fn wrong_addresses_users_and_databases_are_distinguished() {
    let database = TestDatabase::alone();
    let url = database.url();
    database.psql("CREATE ROLE guarded LOGIN PASSWORD 'open-sesame'; CREATE ROLE weak LOGIN");
    let hba = database.psql("SHOW hba_file");
    std::fs::write(hba, "host all guarded all scram-sha-256\nhost all all all trust\n").unwrap();
    database.psql("SELECT pg_reload_conf()");
    // The server reads its files again in its own time; a new session shows when.
    let guarded = |password: &str| url.replace("postgres@", &format!("guarded:{password}@"));
    let mut looks = 0;
    while Postgres::open(Options::new(&guarded("wrong")).unwrap().without_migrations())
        .await
        .is_err_and(|error| !error.to_string().contains("password"))
    {
        looks += 1;
        assert!(looks < 10_000);
    }

    let nowhere = Options::new("postgresql://postgres:hush@127.0.0.1:1/db").unwrap();
    let error = refused(nowhere).await;
    assert!(error.to_string().contains("nothing listens there; check host and port"), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1/db"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);

    let error = refused(Options::new(&guarded("hush-hush")).unwrap()).await;
    assert!(error.to_string().contains("does not accept the user or the password"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(!all_text(&error).contains("hush-hush"), "{error:?}");

    let error = refused(Options::new(&url.replace("postgres@", "guarded@")).unwrap()).await;
    assert!(error.to_string().contains("the url has none"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);

    let error = refused(Options::new(&url.replace(&database.name, "nowhere")).unwrap()).await;
    assert!(error.to_string().contains("CREATE DATABASE"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);

    let weak = Options::new(&url.replace("postgres@", "weak@")).unwrap();
    let error = refused(weak.clone()).await;
    assert!(
        error.to_string().contains("permission denied") && error.to_string().contains("GRANT"),
        "{error}"
    );

    let error = refused(weak.without_migrations()).await;
    assert!(error.to_string().contains("tollgate postgres install"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
}

/// The least rights that a gate needs, as the README gives them.
#[tokio::test]
async fn a_user_with_the_documented_rights_can_decide() {
    let database = TestDatabase::new();
    database.gate().await;
    let role = format!("least_{}", database.name);
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tollgate TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tollgate TO {role}"
    ));
    let options = Options::new(&database.url().replace("postgres@", &format!("{role}@"))).unwrap();
    let gate = Postgres::open(options).await.unwrap();
    assert!(acquire(&gate, &hourly(1), "least").await.is_admitted());
    assert!(!acquire(&gate, &hourly(1), "least").await.is_admitted());
    assert_eq!(gate.clean_up(10).await.unwrap(), 0);
}

#[test]
fn a_url_that_cannot_be_read_is_not_repeated() {
    for url in
        ["postgresql://me:hush-hush@host:port/db", "postgresql://me:hush-hush@h/db?sslmode=maybe"]
    {
        let error = Options::new(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!all_text(&error).contains("hush-hush"), "{error:?}");
        assert!(error.to_string().contains("postgresql://user:password@host"), "{error}");
    }
    let options = Options::new("postgresql://me:hush-hush@host/db").unwrap();
    assert!(!format!("{options:?}").contains("hush-hush"));
}

/// TLS with a certificate that is checked: trusted where its authority is named, refused where it is not.
#[tokio::test]
async fn certificates_are_checked() {
    let database = TestDatabase::alone();
    database.psql(
        "COPY (SELECT 1) TO PROGRAM 'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
         -subj /CN=tollgate-test -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
         -keyout server.key -out server.crt && chmod 600 server.key'",
    );
    database.psql("ALTER SYSTEM SET ssl = on");
    database.psql("SELECT pg_reload_conf()");
    let folder = database.psql("SHOW data_directory");
    let certificate = std::fs::read(format!("{folder}/server.crt")).unwrap();
    let require = Options::new(&format!("{}?sslmode=require", database.url())).unwrap();
    let trusting = require.clone().authority(certificate);
    let mut looks = 0;
    let gate = loop {
        match Postgres::open(trusting.clone()).await {
            Ok(gate) => break gate,
            Err(error) => {
                looks += 1;
                assert!(looks < 1_000, "{error} {:?}", std::error::Error::source(&error));
            }
        }
    };
    assert!(acquire(&gate, &hourly(1), "sealed").await.is_admitted());
    assert_eq!(database.psql("SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'tollgate'"), "t");
    let error = refused(require).await;
    assert!(error.to_string().contains("TLS"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let error = refused(trusting.authority("no certificate")).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
