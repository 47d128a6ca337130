"""Simulators over a wire: in a process of their own, on this machine, in a container or on another one.

`frames` is the form of a message, `values` what a message may hold, `shared` how arrays go past the wire on one machine,
`handshake` who may connect, `worker` the process that has the simulator, `server` and `client` the two ends.
"""
