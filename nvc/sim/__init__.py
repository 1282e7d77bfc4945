"""The simulated machine: a driver root, /proc and /dev trees made from a description. Product code."""
