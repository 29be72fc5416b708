"""What the gateway does when there is too much: who is refused, and when it is worth to come again.

    pace        how often things come free, of late: what Retry-After says
    load        how long a new run of a tenant would wait for the model
    memory      how much memory the machine, or the cgroup, has left
    admission   whether a run may begin, from all of them
    bodies      requests' bodies that come too slowly
    readers     answers that nobody takes
    slow        the two of them

Refused are new runs and requests of the OpenAI routes. Probes, cancels, deletes and the
administrator's routes ask nobody here.
"""
