// The C half of nlr_flag.s. It does not include nlr.h, where nlr_jump() does not return: here it does.
void nlr_set_unwinding(int flag);
void nlr_pop_to(void *val);

void nlr_jump(void *val) {
    nlr_pop_to(val);
    nlr_set_unwinding(1);
}
