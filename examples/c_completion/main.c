/* Continues the text of the input, and sends what the model writes as it comes. */

#include "lip.h"
#include "lip_msgpack.h"

enum { INPUT_MAX = 16384, TOKENS_MAX = 4096, AT_ONCE = 64, MAX_TOKENS = 64 };

struct choice {
  uint32_t token;
  float logprob;
};

static char input[INPUT_MAX];
static uint32_t tokens[TOKENS_MAX];

/* Ends the run with an exit code if a call has failed; else returns its result. */
static int32_t check(int32_t result, const char *call, uint32_t length) {
  if (result >= 0) return result;
  lip_log(3, call, length);
  lip_exit(-result);
}
#define CHECK(call) check((call), #call, sizeof #call - 1)

static void send_text(const struct choice *choices, int32_t count) {
  uint32_t ids[AT_ONCE];
  char text[64 * AT_ONCE];
  for (int32_t i = 0; i < count; i++) ids[i] = choices[i].token;
  int32_t length = CHECK(lip_detokenize(ids, count, text, sizeof text));
  if (length <= (int32_t)sizeof text) CHECK(lip_send(text, length));
}

LIP_EXPORT("lip_main")
int32_t lip_main(void) {
  int32_t length = CHECK(lip_input_read(input, sizeof input));
  if (length > INPUT_MAX) return 2; /* nothing was written */
  int32_t n = CHECK(lip_tokenize(input, length, tokens, TOKENS_MAX));
  if (n == 0 || n > TOKENS_MAX) return 2;

  uint8_t bytes[32];
  struct lip_writer opts = lip_write_to(bytes, sizeof bytes);
  lip_write_map(&opts, 1);
  lip_write_key(&opts, "max");
  lip_write_int(&opts, MAX_TOKENS);

  int32_t kv = CHECK(lip_kv_create());
  int32_t ticket = CHECK(lip_generate(kv, tokens, n, bytes, lip_written(&opts)));
  for (;;) {
    struct choice choices[AT_ONCE];
    int32_t size = CHECK(lip_claim(ticket, choices, sizeof choices, -1));
    if (size == 0) return 0; /* it has ended */
    send_text(choices, size / (int32_t)sizeof(struct choice));
  }
}
