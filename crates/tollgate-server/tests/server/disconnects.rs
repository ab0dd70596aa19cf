//! Clients that disconnect: a release or settle completes although no client reads the reply.

use std::sync::Arc;

use tollgate::{Gate, GateExt};
use tollgate_protocol::protobuf::tollgate::v1::ReleaseRequest;
use tollgate_protocol::protobuf::tollgate::v1::gate_client::GateClient;

use crate::client::{Server, policies};
use crate::grpc::channel;
use crate::shutdown::{Doors, Held};

const ASK: &str = r#"{"policy": "jobs", "subject": "p7"}"#;

/// How often the runtime may yield before a server must have seen that its client disconnected.
const TURNS: usize = 1_000;

/// A server whose only slot is taken, and whose gate holds every ask.
struct Taken {
    server: Server,
    gate: Arc<dyn Gate>,
    doors: Arc<Doors>,
    permit: String,
}

impl Taken {
    async fn start() -> Self {
        let doors = Arc::new(Doors::default());
        doors.open.add_permits(1);
        let mut inner = None;
        let server = Server::around(|gate| {
            inner = Some(Arc::clone(&gate));
            Arc::new(Held { gate, doors: Arc::clone(&doors) })
        })
        .await;
        let permit = server.permit(ASK).await;
        doors.entered.notified().await;
        Self { server, gate: inner.unwrap(), doors, permit }
    }

    /// Stops the server after its client left, and says how many slots are taken then.
    async fn used_in_the_end(self) -> u64 {
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        let stopping = self.server.stop();
        for _ in 0..TURNS {
            tokio::task::yield_now().await;
        }
        self.doors.open.add_permits(1);
        assert_eq!(stopping.done.await.unwrap().cut, 0);
        let jobs = policies().get("jobs").unwrap().clone();
        self.gate.standing(&jobs, "p7").await.unwrap()[0].used
    }
}

#[tokio::test]
async fn a_release_is_done_though_its_client_closes_the_connection() {
    let taken = Taken::start().await;
    let body = format!("{{\"permit\": {:?}}}", taken.permit);
    drop(taken.server.start_send("POST", "/v1/release", &body).await);
    taken.doors.entered.notified().await;
    assert_eq!(taken.used_in_the_end().await, 0);
}

#[tokio::test]
async fn a_release_is_done_though_its_client_takes_the_call_back() {
    let taken = Taken::start().await;
    let mut gate = GateClient::with_origin(channel(), taken.server.origin());
    let request = ReleaseRequest { permit: taken.permit.clone() };
    let call = tokio::spawn(async move { gate.release(request).await });
    taken.doors.entered.notified().await;
    call.abort();
    assert_eq!(taken.used_in_the_end().await, 0);
}
