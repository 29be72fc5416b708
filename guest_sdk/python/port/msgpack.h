#ifndef SYMPHONY_MSGPACK_H
#define SYMPHONY_MSGPACK_H

#include "py/obj.h"

// MessagePack: what structured arguments and results of calls are in. Both raise ValueError.
// With `single` floats have 32 bits, as options of calls do.
mp_obj_t symphony_pack(mp_obj_t value, bool single);
mp_obj_t symphony_unpack(mp_obj_t packed);

#endif
