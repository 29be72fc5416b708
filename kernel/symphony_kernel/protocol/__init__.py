"""What the roles say to each other: messages, links, errnos, limits, options of `pred`."""
