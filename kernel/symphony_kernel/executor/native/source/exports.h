// What Python calls. A function marked so throws nothing: its body is wrapped where it may.
#pragma once

#define SYMPHONY_EXPORT extern "C" __attribute__((visibility("default")))
