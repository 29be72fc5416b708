/* A tiny writer of MessagePack, for the options and requests of calls. It needs no library.
 *
 *   uint8_t bytes[64];
 *   struct lip_writer opts = lip_write_to(bytes, sizeof bytes);
 *   lip_write_map(&opts, 2);
 *   lip_write_key(&opts, "max");
 *   lip_write_int(&opts, 32);
 *   lip_write_key(&opts, "get");
 *   lip_write_text(&opts, "argmax");
 *   lip_generate(kv, tokens, n, opts.at, lip_written(&opts));
 *
 * What does not fit is not written: `lip_written` then returns 0 and `overflow` is set.
 */
#ifndef SYMPHONY_LIP_MSGPACK_H
#define SYMPHONY_LIP_MSGPACK_H

#include <stdint.h>

struct lip_writer {
  uint8_t *at;       /* the first byte */
  uint32_t capacity; /* bytes */
  uint32_t length;   /* bytes written */
  int overflow;
};

static inline struct lip_writer lip_write_to(void *bytes, uint32_t capacity) {
  struct lip_writer writer = {(uint8_t *)bytes, capacity, 0, 0};
  return writer;
}

/* The length of what was written, 0 if something did not fit. */
static inline uint32_t lip_written(const struct lip_writer *writer) {
  return writer->overflow ? 0 : writer->length;
}

static inline void lip_write_bytes_(struct lip_writer *writer, const void *bytes, uint32_t length) {
  const uint8_t *from = (const uint8_t *)bytes;
  if (writer->overflow || length > writer->capacity - writer->length) {
    writer->overflow = 1;
    return;
  }
  for (uint32_t i = 0; i < length; i++) writer->at[writer->length + i] = from[i];
  writer->length += length;
}

/* A first byte, and a number of `size` bytes, the highest first. */
static inline void lip_write_head_(struct lip_writer *writer, uint8_t first, uint64_t number, uint32_t size) {
  uint8_t head[9];
  head[0] = first;
  for (uint32_t i = 0; i < size; i++) head[1 + i] = (uint8_t)(number >> (8 * (size - 1 - i)));
  lip_write_bytes_(writer, head, 1 + size);
}

static inline void lip_write_count_(struct lip_writer *writer, uint8_t small, uint32_t small_max, uint8_t wide, uint32_t count) {
  if (count <= small_max) lip_write_head_(writer, (uint8_t)(small | count), 0, 0);
  else if (count <= 0xffff) lip_write_head_(writer, wide, count, 2);
  else lip_write_head_(writer, (uint8_t)(wide + 1), count, 4);
}

/* A map of `count` pairs: so many keys with their values follow. */
static inline void lip_write_map(struct lip_writer *writer, uint32_t count) {
  lip_write_count_(writer, 0x80, 15, 0xde, count);
}

/* A list: so many values follow. */
static inline void lip_write_list(struct lip_writer *writer, uint32_t count) {
  lip_write_count_(writer, 0x90, 15, 0xdc, count);
}

static inline void lip_write_nil(struct lip_writer *writer) { lip_write_head_(writer, 0xc0, 0, 0); }

static inline void lip_write_bool(struct lip_writer *writer, int value) {
  lip_write_head_(writer, value ? 0xc3 : 0xc2, 0, 0);
}

static inline void lip_write_int(struct lip_writer *writer, int64_t value) {
  if (value >= -32 && value < 128) lip_write_head_(writer, (uint8_t)value, 0, 0);
  else if (value < 0) lip_write_head_(writer, 0xd3, (uint64_t)value, 8);
  else if (value <= 0xffffffff) lip_write_head_(writer, 0xce, (uint64_t)value, 4);
  else lip_write_head_(writer, 0xcf, (uint64_t)value, 8);
}

static inline void lip_write_float(struct lip_writer *writer, double value) {
  union {
    double value;
    uint64_t bits;
  } as = {value};
  lip_write_head_(writer, 0xcb, as.bits, 8);
}

/* Text of a known length, in UTF-8. */
static inline void lip_write_text_of(struct lip_writer *writer, const char *text, uint32_t length) {
  if (length > 31 && length <= 0xff) lip_write_head_(writer, 0xd9, length, 1);
  else lip_write_count_(writer, 0xa0, 31, 0xda, length);
  lip_write_bytes_(writer, text, length);
}

/* Text that ends with a zero byte. */
static inline void lip_write_text(struct lip_writer *writer, const char *text) {
  uint32_t length = 0;
  while (text[length]) length++;
  lip_write_text_of(writer, text, length);
}

/* A key of a map. Its value follows. */
static inline void lip_write_key(struct lip_writer *writer, const char *key) { lip_write_text(writer, key); }

/* Bytes. */
static inline void lip_write_binary(struct lip_writer *writer, const void *bytes, uint32_t length) {
  if (length <= 0xff) lip_write_head_(writer, 0xc4, length, 1);
  else if (length <= 0xffff) lip_write_head_(writer, 0xc5, length, 2);
  else lip_write_head_(writer, 0xc6, length, 4);
  lip_write_bytes_(writer, bytes, length);
}

#endif
