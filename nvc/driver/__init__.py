"""What is installed on the host: facts only, no decisions about a container."""
