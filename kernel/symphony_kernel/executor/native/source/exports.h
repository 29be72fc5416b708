// What Python calls. Such a function throws nothing: its body is wrapped where it could.
#pragma once

#define SYMPHONY_EXPORT extern "C" __attribute__((visibility("default")))
