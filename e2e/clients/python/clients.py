"""Drives the stock Python client; see ../README.md."""

import json
import os
import sys
import threading
import traceback

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

GROUP, VERSION, PLURAL = "panda.dev", "v1alpha1", "agents"
NS = os.environ["PANDA_NAMESPACE"]
PATIENCE = 30
CASES = []


def case(function):
    CASES.append(function)
    return function


def agent(name, text="one", **labels):
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Agent",
        "metadata": {"name": name, "labels": labels},
        "spec": {"displayName": text, "drivers": [{"kind": "Exec", "command": ["true"]}]},
    }


def custom(verb, *rest, **options):
    """A call of the custom objects API, for Agents of the namespace."""
    method = getattr(client.CustomObjectsApi(), f"{verb}_namespaced_custom_object")
    return method(GROUP, VERSION, NS, PLURAL, *rest, **options)


def refused(code, reason, call):
    try:
        call()
    except ApiException as error:
        status = json.loads(error.body)
        assert (error.status, status["reason"]) == (code, reason), (error.status, status)
        return status
    raise AssertionError(f"not refused with {code}")


@case
def objects_are_made_read_changed_and_deleted():
    made = custom("create", agent("py-a"))
    assert made["metadata"]["uid"] and made["metadata"]["generation"] == 1
    refused(409, "AlreadyExists", lambda: custom("create", agent("py-a")))
    patched = custom("patch", "py-a", {"spec": {"displayName": "two"}})
    assert patched["metadata"]["generation"] == 2
    refused(409, "Conflict", lambda: custom("replace", "py-a", made))
    patched["spec"]["displayName"] = "three"
    assert custom("replace", "py-a", patched)["spec"]["displayName"] == "three"
    gone = custom("delete", "py-a")
    assert gone["status"] == "Success" and gone["details"]["uid"] == made["metadata"]["uid"]
    refused(404, "NotFound", lambda: custom("get", "py-a"))


@case
def lists_select_and_come_in_pages():
    for n in range(5):
        custom("create", agent(f"py-list-{n}", team="even" if n % 2 == 0 else "odd"))
    even = custom("list", label_selector="team=even")
    assert [item["metadata"]["name"] for item in even["items"]] == ["py-list-0", "py-list-2", "py-list-4"]
    one = custom("list", field_selector="metadata.name=py-list-3")
    assert len(one["items"]) == 1
    seen, token, versions = [], None, set()
    while True:
        options = {"_continue": token} if token else {}
        page = custom("list", limit=2, label_selector="team", **options)
        seen += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue")
        if not token:
            break
    assert seen == [f"py-list-{n}" for n in range(5)] and len(versions) == 1, (seen, versions)


@case
def a_watch_follows_a_list():
    custom("create", agent("py-old", w="py"))
    listed = custom("list", label_selector="w=py")
    seen, stream = [], watch.Watch()

    def act():
        custom("create", agent("py-new", w="py"))
        custom("patch", "py-new", {"spec": {"displayName": "two"}})
        custom("delete", "py-new")

    thread = threading.Thread(target=act)
    thread.start()
    method = client.CustomObjectsApi().list_namespaced_custom_object
    place = (GROUP, VERSION, NS, PLURAL)
    version = listed["metadata"]["resourceVersion"]
    for event in stream.stream(method, *place, label_selector="w=py", resource_version=version, timeout_seconds=PATIENCE):
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if len(seen) == 3:
            stream.stop()
    thread.join()
    assert seen == [("ADDED", "py-new"), ("MODIFIED", "py-new"), ("DELETED", "py-new")], seen


@case
def discovery_leads_the_dynamic_client():
    api = dynamic.DynamicClient(client.ApiClient())
    agents = api.resources.get(api_version=f"{GROUP}/{VERSION}", kind="Agent")
    assert agents.name == PLURAL and "watch" in agents.verbs
    made = agents.create(body=agent("py-dynamic"), namespace=NS)
    assert made.metadata.name == "py-dynamic"
    patched = agents.patch(
        name="py-dynamic",
        body={"spec": {"displayName": "two"}},
        content_type="application/merge-patch+json",
        namespace=NS,
    )
    assert patched.spec.displayName == "two"
    agents.delete(name="py-dynamic", namespace=NS)


@case
def built_in_kinds_are_typed():
    core = client.CoreV1Api()
    assert NS in [item.metadata.name for item in core.list_namespace().items]
    core.create_namespaced_config_map(NS, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="py"), data={"k": "v"}))
    core.patch_namespaced_config_map("py", NS, {"data": {"k": "w"}})
    assert core.read_namespaced_config_map("py", NS).data == {"k": "w"}
    core.delete_namespaced_config_map("py", NS)
    review = client.AuthenticationV1Api().create_self_subject_review(client.V1SelfSubjectReview())
    assert review.status.user_info.username


def main():
    config.load_kube_config()
    failed = 0
    for function in CASES:
        try:
            function()
            print("ok", function.__name__, flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            print("FAIL", function.__name__ + ":", repr(error)[:300], flush=True)
    sys.exit(1 if failed else 0)


main()
