#ifndef SYMPHONY_MODLIP_H
#define SYMPHONY_MODLIP_H

// Writes to the log what was printed since the last line's end.
void symphony_flush(void);

#endif
