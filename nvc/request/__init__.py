"""What a container asks for, as values: devices, driver capabilities, requirements, options, shares. Pure."""
