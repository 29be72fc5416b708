// nlr_try: where what nlr_jump() leaves ends. See nlr_flag.s.

#include "py/mpstate.h"
#include "py/nlr.h"
#include "py/runtime.h"

void nlr_pop_to(void *val);

// The first half of nlr_jump: the exception goes to the innermost nlr_buf_t, which is popped.
void nlr_pop_to(void *val) {
    MP_NLR_JUMP_HEAD(val, top);
}

bool nlr_try(nlr_buf_t *nlr, void (*fun)(void *), void *ctx) {
    nlr_push_tail(nlr);
    void *stack = nlr_stack();
    fun(ctx);
    if (nlr_caught(stack)) {
        return false;
    }
    nlr_pop();
    return true;
}

void nlr_jump_fail(void *val) {
    (void)val;
    __builtin_trap();
}
