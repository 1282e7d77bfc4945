"""OCI side: state, bundle, environment, lifecycle hooks. Knows containers; leaves GPUs to ``nvc``."""
