"""``nvidia-ctk``: the command of NVIDIA's container toolkit, answered by this project's own modules."""
