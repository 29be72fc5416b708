// Nothing of hardware: time is of the server, and what is printed goes to the log.
#define MICROPY_BEGIN_ATOMIC_SECTION() 0
#define MICROPY_END_ATOMIC_SECTION(state) (void)(state)
void mp_hal_stdout_tx_strn_cooked(const char *str, size_t len);
