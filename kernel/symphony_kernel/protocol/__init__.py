"""The contract between the roles: messages, links, errnos, limits, options of `pred`.

    messages, sessions, links       what roles send each other, and how frames reach them
    errno, untrusted                errors of the ABI; bounded unpacking of what a stranger sent
    limits, limit_table             every limit of the system, and who is bounded by what
    pred_options, generate_options  the options of model calls, checked in one place

Kernel, worker, gateway and supervisor import it. It knows none of them.
"""
