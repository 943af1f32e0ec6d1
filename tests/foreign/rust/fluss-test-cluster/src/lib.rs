//! A test cluster that is not started but found: its addresses come from the environment.
//!
//! `FLUSS_BOOTSTRAP_SERVERS` is the plain listener of a coordinator, `FLUSS_SASL_BOOTSTRAP_SERVERS` the authenticated
//! one, `FLUSS_TABLET_SERVERS` a comma-separated list of plain listeners of tablet servers. The server must know the
//! users that the tests give to the builder. Everything else that the builder is told (cluster settings, remote data
//! folder) is the business of whoever started the server.

use fluss::client::FlussConnection;
use fluss::config::Config;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CONNECT_FOR: Duration = Duration::from_secs(30);

fn address(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must name the server under test"))
}

pub struct FlussTestingClusterBuilder {
    users: Vec<(String, String)>,
}

impl FlussTestingClusterBuilder {
    pub fn new(name: impl Into<String>) -> Self {
        Self::new_with_cluster_conf(name, &HashMap::new())
    }

    pub fn new_with_cluster_conf(
        _name: impl Into<String>,
        _settings: &HashMap<String, String>,
    ) -> Self {
        Self { users: Vec::new() }
    }

    pub fn with_remote_data_dir(self, _folder: PathBuf) -> Self {
        self
    }

    pub fn with_sasl(mut self, users: Vec<(String, String)>) -> Self {
        self.users = users;
        self
    }

    pub async fn build(&mut self) -> FlussTestingCluster {
        FlussTestingCluster {
            plain: address("FLUSS_BOOTSTRAP_SERVERS"),
            sasl: address("FLUSS_SASL_BOOTSTRAP_SERVERS"),
            tablet_servers: address("FLUSS_TABLET_SERVERS")
                .split(',')
                .map(String::from)
                .collect(),
            users: self.users.clone(),
        }
    }
}

#[derive(Clone)]
pub struct FlussTestingCluster {
    plain: String,
    sasl: String,
    tablet_servers: Vec<String>,
    users: Vec<(String, String)>,
}

impl FlussTestingCluster {
    /// Nothing to stop: the server belongs to somebody else.
    pub fn stop(&self) {}

    pub fn sasl_users(&self) -> &[(String, String)] {
        &self.users
    }

    pub fn plaintext_bootstrap_servers(&self) -> &str {
        &self.plain
    }

    pub fn plaintext_tablet_bootstrap_server(&self, server_id: u16) -> Option<&str> {
        self.tablet_servers
            .get(usize::from(server_id))
            .map(String::as_str)
    }

    pub async fn get_fluss_connection(&self) -> FlussConnection {
        patiently(Config {
            writer_acks: "all".to_string(),
            bootstrap_servers: self.plain.clone(),
            ..Default::default()
        })
        .await
    }

    pub async fn get_fluss_connection_with_sasl(&self, user: &str, password: &str) -> FlussConnection {
        patiently(self.authenticated(user, password)).await
    }

    pub async fn try_fluss_connection_with_sasl(
        &self,
        user: &str,
        password: &str,
    ) -> fluss::error::Result<FlussConnection> {
        FlussConnection::new(self.authenticated(user, password)).await
    }

    fn authenticated(&self, user: &str, password: &str) -> Config {
        Config {
            writer_acks: "all".to_string(),
            bootstrap_servers: self.sasl.clone(),
            security_protocol: "sasl".to_string(),
            security_sasl_mechanism: "PLAIN".to_string(),
            security_sasl_username: user.to_string(),
            security_sasl_password: password.to_string(),
            ..Default::default()
        }
    }
}

/// The server may still be starting, so a refused connection is tried again for a while.
async fn patiently(config: Config) -> FlussConnection {
    let began = Instant::now();
    loop {
        match FlussConnection::new(config.clone()).await {
            Ok(connection) => return connection,
            Err(error) if began.elapsed() > CONNECT_FOR => {
                panic!("no connection to {}: {error}", config.bootstrap_servers)
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}
