"""What a container may use of a GPU: how it is written, who decides it, and the files it is kept in.

model, spec, dialects and policy are pure; limits and region know the two files of native/shim/share.h; store keeps the
host's record of every container with a share.
"""
