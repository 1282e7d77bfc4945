"""The rows of ``nvc-py kube check``, in the order of the report. docs/reference/kube-checks.md has the same, held by a
test."""

from __future__ import annotations

from nvc.kube import check_cluster, check_node
from nvc.kube.check import Look, Row

ROWS: tuple[tuple[Row, Look], ...] = (
    (
        Row(
            "cluster-version",
            "cluster",
            "the API server's version, against the table of features",
            "what pods can ask for depends on it",
        ),
        check_cluster.version,
    ),
    (
        Row(
            "cluster-api",
            "cluster",
            "versions of resource.k8s.io that are served",
            "claims and slices are objects of it",
        ),
        check_cluster.api,
    ),
    (
        Row(
            "cluster-gate",
            "cluster",
            "DRAConsumableCapacity in the API server: by the slices that it keeps, else by its metrics",
            "without it the scheduler cannot place a part of a GPU",
        ),
        check_cluster.gate,
    ),
    (
        Row("cluster-classes", "cluster", "the device classes nvc-gpu and nvc-gpu-guarded", "claims name a class"),
        check_cluster.classes,
    ),
    (
        Row("cluster-runtime-class", "cluster", "the RuntimeClass nvc", "by it pods are started by nvc-runtime"),
        check_cluster.runtime_class,
    ),
    (
        Row(
            "cluster-policies",
            "cluster",
            "the chart's admission policies, their bindings, and whether they are an older chart's",
            "they refuse what gets around shares, or ends the scheduler of 1.34",
        ),
        check_cluster.policies,
    ),
    (
        Row(
            "cluster-nodes",
            "cluster",
            "versions of kubelet and engine on nodes that offer GPUs, and on --node",
            "an older one does not know claims or CDI names",
        ),
        check_cluster.nodes,
    ),
    (
        Row(
            "cluster-kubelet-gate",
            "cluster",
            "DRAConsumableCapacity in the kubelet of --node",
            "without it the kubelet takes two claims of one GPU for one",
        ),
        check_cluster.kubelet_gate,
    ),
    (
        Row(
            "cluster-slices",
            "cluster",
            "our slices: whole, of every node or of --node, without faults",
            "the scheduler places by them",
        ),
        check_cluster.slices,
    ),
    (
        Row(
            "cluster-others",
            "cluster",
            "other drivers' slices and device plugins on nodes with ours",
            "a GPU that two programs offer is given twice",
        ),
        check_cluster.others,
    ),
    (
        Row(
            "node-kubelet",
            "node",
            "the kubelet's directories",
            "the kubelet finds drivers and plugins by sockets there",
        ),
        check_node.kubelet,
    ),
    (
        Row("node-served", "node", "sockets of the driver and the device plugin", "without either pods get no GPU"),
        check_node.served,
    ),
    (
        Row(
            "node-handler",
            "node",
            "nvc-runtime as the RuntimeClass's handler or the default runtime of containerd or CRI-O",
            "the guard enforces shares only of containers that it starts",
        ),
        check_node.handler,
    ),
    (
        Row(
            "node-runtime",
            "node",
            "the first program of `runtimes` in config.toml that is installed",
            "nvc-runtime becomes it, for every container",
        ),
        check_node.runtime,
    ),
    (
        Row(
            "node-cdi",
            "node",
            "enable_cdi and cdi_spec_dirs of the engine",
            "a pod's GPU is a CDI name, which the engine resolves",
        ),
        check_node.cdi,
    ),
    (
        Row(
            "node-cdi-directory",
            "node",
            "owner, mode and file system of the directory of CDI specs; the specs in it",
            "it is the only record of what was given",
        ),
        check_node.cdi_directory,
    ),
    (Row("node-agent", "node", "the agent's control socket", "it admits containers with a share"), check_node.agent),
    (
        Row(
            "node-variables",
            "node",
            "accept-nvidia-visible-devices-envvar-when-unprivileged",
            "a GPU that a pod takes by a variable is in no scheduler's sum",
        ),
        check_node.variables,
    ),
    (
        Row(
            "node-guard",
            "node",
            "guard and allow-guard-off in section [share]",
            "the preloaded library does not hold every program",
        ),
        check_node.guard,
    ),
)
