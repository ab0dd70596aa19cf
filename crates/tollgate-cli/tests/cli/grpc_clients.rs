//! gRPC with a third-party client that knows of the broker only what reflection says: what grpcurl does.

use serde_json::Value;
use tollgate_testkit::servers::python;

use crate::folder::Folder;
use crate::running::Broker;

/// `grpcurl -plaintext -d DATA ADDRESS SERVICE/METHOD`, with a list of services and a look at health around it.
const GRPCURL: &str = r"
import json, sys
import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, key, data, name = sys.argv[1:5]
metadata = [('authorization', 'Bearer ' + key)] if key else None
channel = grpc.insecure_channel(address)
if key:
    class Signed(grpc.StreamStreamClientInterceptor):
        def intercept_stream_stream(self, go_on, details, requests):
            details = type('Details', (), dict(method=details.method, timeout=details.timeout, metadata=metadata,
                credentials=None, wait_for_ready=None, compression=None))()
            return go_on(details, requests)
    described = grpc.intercept_channel(channel, Signed())
else:
    described = channel
database = ProtoReflectionDescriptorDatabase(described)
pool = DescriptorPool(database)
service, method = name.split('/')
found = pool.FindServiceByName(service).FindMethodByName(method)
ask = json_format.ParseDict(json.loads(data), GetMessageClass(found.input_type)())
call = channel.unary_unary('/' + name, request_serializer=type(ask).SerializeToString,
    response_deserializer=GetMessageClass(found.output_type).FromString)
health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
answer = dict(services=sorted(database.get_services()), health=health_pb2.HealthCheckResponse.ServingStatus.Name(health.status))
try:
    answer['answer'] = json_format.MessageToDict(call(ask, metadata=metadata, timeout=30))
except grpc.RpcError as error:
    answer['status'] = [error.code().name, error.details(), dict(error.trailing_metadata()).get('tollgate-kind')]
print(json.dumps(answer))
";

/// Calls `method` with `data`, which is JSON, and with `key` if it is not empty.
pub(crate) fn call(broker: &Broker, key: &str, data: &str, method: &str) -> Value {
    let url = broker.grpc.as_ref().expect("it is on");
    let address = url.trim_start_matches("http://");
    let printed = python(GRPCURL, &[address, key, data, method]).expect("the script passes");
    serde_json::from_str(&printed).expect("JSON")
}

/// The call that the README shows, on the sample that runs without a configuration.
#[test]
fn the_call_of_the_readme_works_by_reflection_alone() {
    let readme = include_str!("../../../../README.md");
    let line = readme.lines().find(|line| line.contains("grpcurl -plaintext")).expect("a call");
    let data = line.split('\'').nth(1).expect("data in quotes");
    let method = line.rsplit(' ').next().expect("a method");
    let folder = Folder::new();
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let answer = call(&broker, "", data, method);
    assert_eq!(answer["health"], "SERVING");
    for service in ["tollgate.v1.Gate", "envoy.service.ratelimit.v3.RateLimitService"] {
        let services = answer["services"].as_array().expect("a list");
        assert!(services.contains(&service.into()), "{answer}");
    }
    let admitted = &answer["answer"]["admitted"];
    assert!(admitted["permit"].is_string(), "{answer}");
    assert_eq!(admitted["limits"][1]["used"], "3750", "{answer}");
}

#[test]
fn a_generic_client_needs_a_key_and_sees_its_errors() {
    let made = Folder::new().run("keys new any --scope acquire --scope inspect --json").out;
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let (key, hash) = (made["key"].as_str().expect("text"), &made["hash"]);
    let folder = Folder::with(&format!(
        "[store]\nkind = \"memory\"\n[[key]]\nname = \"any\"\nscopes = [\"acquire\", \"inspect\"]\nhash = {hash}\n\
         [[policy]]\nname = \"api\"\nlimits = [{{ name = \"burst\", unit = \"requests\", rule = \"token-bucket\", \
         capacity = 1, refill = \"1/h\" }}]\n"
    ));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let ask = r#"{"policy": "api", "subject": "a"}"#;
    let acquire = |data| call(&broker, key, data, "tollgate.v1.Gate/Acquire");
    assert!(acquire(ask)["answer"]["admitted"].is_object());
    // A denial is an answer.
    assert_eq!(acquire(ask)["answer"]["denied"]["limit"], "burst");
    let unknown = acquire(r#"{"policy": "apl", "subject": "a"}"#);
    assert_eq!(unknown["status"][0], "NOT_FOUND", "{unknown}");
    assert_eq!(unknown["status"][2], "unknown-policy", "{unknown}");
    let reset = call(&broker, key, ask, "tollgate.v1.Gate/Reset");
    assert_eq!(reset["status"][0], "PERMISSION_DENIED", "{reset}");
    let address = broker.grpc.as_ref().expect("it is on").trim_start_matches("http://");
    // Without a key not even reflection answers.
    let refused = python(GRPCURL, &[address, "", ask, "tollgate.v1.Gate/Acquire"]).unwrap_err();
    assert!(refused.to_string().contains("this needs a key"), "{refused}");
}
