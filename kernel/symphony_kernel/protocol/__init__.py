"""The contract between the roles: messages, links, errnos, limits, options of `pred`.

    messages, sessions, links       messages of the roles, and how frames reach them
    errno, untrusted                errors of the ABI; bounded unpacking of untrusted bytes
    limits, limit_table             every limit of the system, and to whom it applies
    pred_options, generate_options  the options of model calls, checked in one place

Kernel, worker, gateway and supervisor import it. It imports none of them.
"""
