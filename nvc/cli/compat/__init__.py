"""The commands of nvidia-container-cli: info, list, configure."""
