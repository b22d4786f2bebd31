"""The network threads: sockets, connections, their memory, and the border to the control plane."""
