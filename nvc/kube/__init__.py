"""Kubernetes: what runs on a node beside the kubelet, and what its interfaces look like.

The scheduler places claims, this package turns what was placed into shares (``nvc.cdi``, ``nvc.share``), and the guard
holds them. Nothing outside of it, and no command but ``nvc-py kube``, imports grpc or the Kubernetes client.
"""
