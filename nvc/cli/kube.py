"""``nvc-py kube``: the programs of a Kubernetes node (click commands; nothing on the start-up path imports this).

Modules of ``nvc.kube`` that need grpc or the Kubernetes client are imported by the command that is called.
"""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def kube() -> None:
    """Kubernetes: pods get GPUs, and shares of GPUs that the guard holds.

    These commands need Python's grpcio, protobuf and kubernetes (the extra `kube` of the package).
    """
