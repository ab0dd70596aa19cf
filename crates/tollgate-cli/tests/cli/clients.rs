//! The Redis protocol with third-party clients: what they send when they connect, and how they read answers.

use tollgate_testkit::servers::{Program, node, python, run};

use crate::folder::Folder;
use crate::running::Broker;

/// A broker on a store in memory, whose policy admits two and then none for an hour.
fn broker() -> (Folder, Broker, String) {
    let folder = Folder::with(
        r#"
        [store]
        kind = "memory"
        [[policy]]
        name = "two"
        limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
        "#,
    );
    let broker = Broker::start(&folder, "");
    let address = broker.resp.clone().expect("it is on");
    let port = address.rsplit(':').next().expect("a port").to_owned();
    (folder, broker, port)
}

pub(crate) fn redis_cli(port: &str, words: &str) -> String {
    let program = Program::new("redis-cli").args("--no-auth-warning -p").arg(port).args(words);
    run(&program).expect("redis-cli runs")
}

#[test]
fn redis_cli_asks_and_is_answered() {
    let (_folder, broker, port) = broker();
    assert_eq!(redis_cli(&port, "CL.THROTTLE alice 15 30 60"), "0\n16\n15\n-1\n2\n");
    assert_eq!(redis_cli(&port, "DEL alice bob"), "1\n");
    assert_eq!(redis_cli(&port, "CL.THROTTLE alice 15 30 60"), "0\n16\n15\n-1\n2\n");
    assert_eq!(redis_cli(&port, "-n 0 CL.THROTTLE alice 15 30 60 0"), "0\n16\n15\n-1\n2\n");
    assert_eq!(redis_cli(&port, "SELECT 5"), "ERR DB index is out of range; there is only 0\n\n");
    let answer = redis_cli(&port, "-3 TG.ACQUIRE two alice");
    assert!(answer.starts_with("admitted (true)\n"), "{answer}");
    assert_eq!(redis_cli(&port, "NOTHING").trim_end().split(' ').next(), Some("ERR"));
    drop(broker);
}

/// Every answer that redis-benchmark counts is one that was charged.
#[test]
fn redis_benchmark_is_answered_and_charged_exactly() {
    let (_folder, broker, port) = broker();
    let call = "CL.THROTTLE key 9999 1 3600";
    for (requests, pipelined) in [(1_000, 1), (3_200, 16)] {
        let line = format!("-p {port} -n {requests} -c 20 -P {pipelined} -q {call}");
        let printed = run(&Program::new("redis-benchmark").args(&line)).expect("it runs");
        assert!(printed.contains("requests per second"), "{printed}");
    }
    let standing = redis_cli(&port, &format!("{call} 0"));
    assert!(standing.starts_with("0\n10000\n5800\n-1\n"), "{standing}");
    drop(broker);
}

#[test]
fn redis_py_speaks_both_versions_and_pipelines() {
    let (_folder, broker, port) = broker();
    let script = r"
import sys, redis
for protocol, subject in ((2, 'old'), (3, 'new')):
    client = redis.Redis(port=int(sys.argv[1]), protocol=protocol, decode_responses=True)
    assert client.ping()
    throttle = client.execute_command('CL.THROTTLE', subject, 15, 30, 60)
    assert throttle == [0, 16, 15, -1, 2], throttle
    assert client.delete(subject, 'nobody') == 1
    assert client.execute_command('CL.THROTTLE', subject, 15, 30, 60) == throttle
    pipe = client.pipeline(transaction=False)
    for _ in range(3):
        pipe.execute_command('TG.ACQUIRE', 'two', subject, 'COST', 'requests', 1)
    answers = pipe.execute()
    if protocol == 2:
        answers = [dict(zip(answer[::2], answer[1::2])) for answer in answers]
    assert [bool(answer['admitted']) for answer in answers] == [True, True, False], answers
    try:
        client.execute_command('TG.ACQUIRE', 'nothing', subject)
        raise SystemExit('an unknown policy was accepted')
    except redis.ResponseError as error:
        assert 'no policy is called' in str(error), error
try:
    redis.Redis(port=int(sys.argv[1]), db=5).ping()
    raise SystemExit('another database was accepted')
except redis.ResponseError as error:
    assert 'DB index is out of range' in str(error), error
print('done')
";
    assert_eq!(python(script, &[&port]).expect("the script passes"), "done\n");
    drop(broker);
}

#[test]
fn node_redis_speaks_both_versions_and_pipelines() {
    let (_folder, broker, port) = broker();
    let script = r"
const assert = require('node:assert');
const { createClient } = require('redis');
(async () => {
  for (const [RESP, subject] of [[2, 'old'], [3, 'new']]) {
    const client = createClient({ url: `redis://127.0.0.1:${process.argv[1]}`, RESP });
    client.on('error', (error) => { throw error; });
    await client.connect();
    assert.deepEqual(await client.sendCommand(['CL.THROTTLE', subject, '15', '30', '60']), [0, 16, 15, -1, 2]);
    const ask = () => client.sendCommand(['TG.ACQUIRE', 'two', subject]);
    const answers = await Promise.all([ask(), ask(), ask()]);
    const admitted = answers.map((answer) => Array.isArray(answer)
      ? answer[answer.indexOf('admitted') + 1] : (answer.admitted ?? answer.get('admitted')));
    assert.deepEqual(admitted.map(Boolean), [true, true, false]);
    await assert.rejects(client.sendCommand(['TG.ACQUIRE', 'nothing', subject]), /no policy is called/);
    await client.close();
  }
  console.log('done');
})();
";
    assert_eq!(node(script, &[&port]).expect("the script passes"), "done\n");
    drop(broker);
}
