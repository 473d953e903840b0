"""A user's program: declares a service with its own typed messages, watches it to Ready, and deletes it.

Run by tests/src/python.rs, with stubs generated from proto/ on the path.
"""

import sys

import grpc
from driftless.v1 import kinds_pb2, resource_pb2, resource_service_pb2, resource_service_pb2_grpc

WITHIN = 30  # seconds
IDENTITY = [("driftless-identity", "user/python")]


def service(name, replicas, **metadata):
    spec = kinds_pb2.ServiceSpec(replicas=replicas, version="v1")
    spec.template.command.extend(["sleep", "86400"])
    spec.template.env.update({"B": "b", "A": "a", "C": "c"})
    spec.template.stop_grace.seconds = 1
    resource = resource_pb2.Resource(metadata=resource_pb2.Metadata(kind="Service", name=name, **metadata))
    resource.spec.Pack(spec)
    return resource


def apply(api, resource, **declaration):
    declared = resource_service_pb2.Declaration(resource=resource, **declaration)
    request = resource_service_pb2.ApplyRequest(declarations=[declared])
    return api.Apply(request, timeout=WITHIN, metadata=IDENTITY).results[0]


def watch_until(api, done):
    """Every change of services, until one satisfies."""
    watch = resource_service_pb2.WatchRequest()
    watch.filter.kinds.append("Service")
    for response in api.Watch(iter([watch]), timeout=WITHIN, metadata=IDENTITY):
        item = response.WhichOneof("item")
        if item == "snapshot_part":
            changes = [resource_service_pb2.Change(put=r) for r in response.snapshot_part.resources]
        elif item == "changes":
            changes = response.changes.changes
        else:
            changes = []
        for change in changes:
            if done(change):
                return
    raise AssertionError("the watch ended first")


def is_ready(change):
    if change.WhichOneof("change") != "put":
        return False
    status = kinds_pb2.ServiceStatus()
    if not change.put.status.Unpack(status):
        return False
    current = status.observed_generation == change.put.metadata.generation
    return current and any(c.type == "Ready" and c.status == "True" for c in status.conditions)


def is_gone(change):
    return change.WhichOneof("change") == "deleted" and change.deleted.key.name == "snake"


def code_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return None


def main(address):
    with grpc.insecure_channel(address) as channel:
        api = resource_service_pb2_grpc.ResourceServiceStub(channel)
        key = resource_pb2.ResourceKey(kind="Service", namespace="default", name="snake")

        created = apply(api, service("snake", 2))
        assert created.outcome == resource_service_pb2.OUTCOME_CREATED, created
        assert created.resource.metadata.uid and created.resource.metadata.namespace == "default"
        watch_until(api, is_ready)

        # The same again, encoded anew: nothing changes.
        again = apply(api, service("snake", 2))
        assert again.outcome == resource_service_pb2.OUTCOME_UNCHANGED, again

        ready = api.Get(resource_service_pb2.GetRequest(key=key), timeout=WITHIN, metadata=IDENTITY).resource
        spec = kinds_pb2.ServiceSpec()
        assert ready.spec.Unpack(spec) and spec.replicas == 2 and spec.template.env["A"] == "a"

        conflict = code_of(lambda: apply(api, service("snake", 3), expected_revision=1))
        assert conflict == grpc.StatusCode.ABORTED, conflict
        invalid = code_of(lambda: apply(api, service("snake", -1)))
        assert invalid == grpc.StatusCode.INVALID_ARGUMENT, invalid

        request = resource_service_pb2.DeleteRequest(key=key, uid=ready.metadata.uid)
        api.Delete(request, timeout=WITHIN, metadata=IDENTITY)
        missing = code_of(lambda: api.Get(resource_service_pb2.GetRequest(key=key), timeout=WITHIN))
        if missing != grpc.StatusCode.NOT_FOUND:
            watch_until_gone(api, key)
        print("all is well")


def watch_until_gone(api, key):
    """A snapshot without it, or its deletion."""
    watch = resource_service_pb2.WatchRequest()
    watch.filter.kinds.append("Service")
    named = False
    for response in api.Watch(iter([watch]), timeout=WITHIN, metadata=IDENTITY):
        item = response.WhichOneof("item")
        if item == "snapshot_part":
            named = named or any(r.metadata.name == key.name for r in response.snapshot_part.resources)
        elif item == "snapshot_end" and not named:
            return
        elif item == "changes" and any(is_gone(change) for change in response.changes.changes):
            return
    raise AssertionError("the watch ended first")


main(sys.argv[1])
