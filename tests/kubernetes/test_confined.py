"""Pods in a namespace with the chart's label: what gets around a share is refused, by whatever way they get a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nvc.kube.names import CLASS_ANY, CLASS_GUARDED, RUNTIME_CLASS
from nvc.kube.versions import EXTENDED, minor
from tests.support import helm
from tests.support.cluster import ApiError, Cluster, Object, apply
from tests.support.containerd import IMAGE
from tests.support.kubenode import Node
from tests.support.leftovers import until
from tests.support.pod_changes import Change, container, volume, whole
from tests.support.pods import Pods, pod
from tests.support.shares import is_guarded, rows

pytestmark = pytest.mark.timeout(300)
CONFINED = "confined"
LABEL = {"nvc.dev/confined": "true"}
#: How the API server calls a class of devices that has no name of its own for pods.
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def counted(name: str, *, where: str = "containers", **whole: object) -> Object:
    """A pod that gets a GPU by a resource name."""
    body = pod([], **whole)
    one = {**body["spec"]["containers"][0], "name": "counted", "resources": {"limits": {name: "1"}}}
    body["spec"][where] = [one]
    return body


#: By what a pod gets a GPU -> a new pod.
WAYS: dict[str, Callable[[], Object]] = {
    "claim": lambda: pod(["claim"]),
    "class": lambda: counted(f"{IMPLICIT}{CLASS_ANY}"),
    "guarded class": lambda: counted(f"{IMPLICIT}{CLASS_GUARDED}"),
    "class, init container": lambda: counted(f"{IMPLICIT}{CLASS_ANY}", where="initContainers"),
    "class that comes later": lambda: counted(f"{IMPLICIT}later"),
    "name that an administrator's class has": lambda: counted("example.com/fast"),
    "name of a device plugin": lambda: counted("nvidia.com/gpu"),
}
#: What gets around a share -> a change of the pod, words of the refusal.
CONFINEMENT: dict[str, tuple[Change, str]] = {
    "privileged": (container(securityContext={"privileged": True}), "may be privileged"),
    "privileged init container": (
        lambda body: (
            body["spec"]
            .setdefault("initContainers", [])
            .append({"name": "i", "image": IMAGE, "securityContext": {"privileged": True}})
        ),
        "may be privileged",
    ),
    "capability": (container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "may add the capabilities"),
    "nodes of the host": (volume("/host", {"hostPath": {"path": "/dev"}}), "may not mount the host's /dev"),
    "shares of the host": (volume("/host", {"hostPath": {"path": "/run/nvc"}}), "may not mount the host's /run/nvc"),
    "claims of the host": (volume("/host", {"hostPath": {"path": "/var/lib/nvc/cdi"}}), "may not mount the host's"),
    "the host": (volume("/host", {"hostPath": {"path": "/"}}), "may not mount the host's /"),
    "processes of the host": (whole(hostPID=True), "may not have the host's pid"),
    "another runtime": (lambda body: body["spec"].pop("runtimeClassName"), "needs runtimeClassName: nvc"),
    "a /proc without masks": (
        lambda body: body["spec"].update(
            hostUsers=False,
            containers=[{**body["spec"]["containers"][0], "securityContext": {"procMount": "Unmasked"}}],
        ),
        "may have an unmasked /proc",
    ),
}


@pytest.fixture
def confined(cluster: Cluster, classes: None) -> Iterator[Pods]:
    """Pods of a namespace with the label."""
    apply(cluster.admin, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CONFINED, "labels": LABEL}}])
    pods = Pods(cluster.admin, CONFINED)
    privileged = {"securityContext": {"privileged": True}}
    assert until(lambda: not is_admitted(pods, pod(["claim"], **privileged)), seconds=20), "the policy is in force"
    yield pods
    pods.clear()


@pytest.fixture
def implicit(cluster: Cluster) -> None:
    """Classes have resource names for pods."""
    if minor(cluster.version) < EXTENDED.on:
        pytest.skip(f"{EXTENDED.gate} is off")


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> Object:
    """A pod with a GPU, by a way of WAYS."""
    body = WAYS[request.param]()
    if IMPLICIT in str(body):
        request.getfixturevalue("implicit")
    return body


@pytest.mark.parametrize("asked", WAYS, indirect=True)
@pytest.mark.parametrize("way", CONFINEMENT)
def test_what_gets_around_a_share_is_refused_in_a_confined_namespace(confined: Pods, way: str, asked: Object) -> None:
    change, words = CONFINEMENT[way]
    change(asked)

    with pytest.raises(ApiError, match=words):
        confined.start(asked)


@pytest.mark.parametrize("asked", WAYS, indirect=True)
def test_a_plain_pod_is_admitted_there(confined: Pods, asked: Object) -> None:
    confined.start(asked)


def test_a_privileged_pod_without_a_claim_is_none_of_the_policys_business(confined: Pods) -> None:
    confined.start(pod([], securityContext={"privileged": True}))


def test_what_is_counted_beside_gpus_can_be_named(confined: Pods, cluster: Cluster) -> None:
    other = {"securityContext": {"privileged": True}}
    try:
        helm.deploy(cluster, {**helm.NOWHERE, "confinement.otherResources[0]": "rdma/hca"})
        assert until(lambda: is_admitted(confined, counted("rdma/hca", **other)), seconds=20)
        with pytest.raises(ApiError, match="may be privileged"):
            confined.start(counted("rdma/hca2", **other))
    finally:
        helm.deploy(cluster, helm.NOWHERE)
    assert until(lambda: not is_admitted(confined, counted("rdma/hca", **other)), seconds=20)


def is_admitted(pods: Pods, body: Object) -> bool:
    try:
        pods.start(body)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("asked", ["claim", "class"], indirect=True)
def test_a_container_added_later_is_refused_too(confined: Pods, cluster: Cluster, asked: Object) -> None:
    path = f"/api/v1/namespaces/{CONFINED}/pods/{confined.start(asked)}/ephemeralcontainers"
    one = {"name": "later", "image": IMAGE, "securityContext": {"privileged": True}}

    with pytest.raises(ApiError, match="may be privileged"):
        cluster.admin.merge(path, {"spec": {"ephemeralContainers": [one]}})


def test_a_pod_of_before_the_label_can_end_and_not_change(cluster: Cluster, classes: None, implicit: None) -> None:
    """Its owner has a finalizer on it, as a Job has: with that the pod would stay for ever."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "labelled-later"}}
    apply(cluster.admin, [namespace])
    pods = Pods(cluster.admin, "labelled-later")
    assert until(lambda: is_admitted(pods, pod([])), seconds=20), "the namespace has its service account"
    body = counted(f"{IMPLICIT}{CLASS_ANY}", securityContext={"privileged": True})
    body["metadata"]["finalizers"] = ["example.com/owner"]
    name = pods.start(body)
    path = f"/api/v1/namespaces/labelled-later/pods/{name}"
    try:
        apply(cluster.admin, [{**namespace, "metadata": {"name": "labelled-later", "labels": LABEL}}])
        more = {"securityContext": {"privileged": True}}
        assert until(lambda: not is_admitted(pods, counted(f"{IMPLICIT}{CLASS_ANY}", **more)), seconds=20)

        with pytest.raises(ApiError, match="may be privileged"):
            cluster.admin.merge(path, {"spec": {"activeDeadlineSeconds": 1000}})
    finally:
        cluster.admin.merge(path, {"metadata": {"finalizers": None}})
        pods.clear()


@pytest.mark.parametrize("runtime_class", [None, RUNTIME_CLASS], ids=["runc", "nvc"])
def test_a_guarded_class_by_its_resource_name(
    driver: Node, pods: Pods, implicit: None, runtime_class: str | None
) -> None:
    """Where no policy is: the claim that the scheduler makes has the class's parameters, and so needs the guard."""
    name = pods.start(counted(f"{IMPLICIT}{CLASS_GUARDED}", runtime_class=runtime_class))

    if runtime_class is None:
        pods.refused(name, "guard")
        assert rows(driver) == []
    else:
        pods.running(name)
        is_guarded(driver, pods.container(name))
