// qstrs specific to this port, only needed if they aren't auto-generated
