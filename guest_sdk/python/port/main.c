// The language module `python`: it reads a source, and runs it as a program.
//
//     lip_main   runs the source, and returns the exit code
//     check      compiles the source, and returns 0
//
// What fails ends in `language.fail`, with the text that Python has for it.

#include <string.h>

#include "py/builtin.h"
#include "py/compile.h"
#include "py/cstack.h"
#include "py/gc.h"
#include "py/mperrno.h"
#include "py/objexcept.h"
#include "py/runtime.h"
#include "lip.h"
#include "modlip.h"

#define HEAP_BYTES_FIRST (128 << 10)
#define HEAP_BYTES_ADDED_MAX (48 << 20) // in one piece; the server limits the whole memory
#ifndef STACK_BYTES_USED_MAX
#define STACK_BYTES_USED_MAX (56 << 10) // of C's stack: Wasm's own, of 256 KiB, fills faster
#endif
#define LINE_BYTES_MAX (4096)
#define FRAMES_FIRST (4) // of a traceback
#define FRAMES_LAST (8)
#define LOG_INFO (1)

size_t symphony_syntax_column;
static qstr source_name;
static char line[LINE_BYTES_MAX];
static size_t line_length;

// --- Printing: a line of the log each --------------------------------------------------------------

void symphony_flush(void) {
    if (line_length > 0) {
        lip_log(LOG_INFO, line, line_length);
        line_length = 0;
    }
}

void mp_hal_stdout_tx_strn_cooked(const char *str, size_t len) {
    for (size_t i = 0; i < len; ++i) {
        if (str[i] == '\n') {
            if (line_length == 0) {
                lip_log(LOG_INFO, "", 0);
            }
            symphony_flush();
        } else {
            if (line_length == LINE_BYTES_MAX) {
                symphony_flush();
            }
            line[line_length++] = str[i];
        }
    }
}

// --- What MicroPython asks of a port ---------------------------------------------------------------

uint32_t symphony_random_seed(void) {
    uint32_t seed = 0;
    lip_random(&seed, sizeof(seed));
    return seed;
}

size_t gc_get_max_new_split(void) {
    return HEAP_BYTES_ADDED_MAX;
}

// Roots are in the stack from here to its top: locals are spilled to it before each call.
void gc_collect(void) {
    gc_collect_start();
    char *stack = nlr_stack();
    gc_collect_root((void **)stack, (MP_STATE_THREAD(stack_top) - stack) / sizeof(void *));
    gc_collect_end();
}

mp_lexer_t *mp_lexer_new_from_file(qstr filename) {
    (void)filename;
    mp_raise_OSError(MP_ENOENT);
}

mp_import_stat_t mp_import_stat(const char *path) {
    (void)path;
    return MP_IMPORT_STAT_NO_EXIST;
}

static mp_obj_t builtin_open(size_t n_args, const mp_obj_t *args, mp_map_t *kwargs) {
    mp_raise_NotImplementedError(MP_ERROR_TEXT("a program has no files"));
}
MP_DEFINE_CONST_FUN_OBJ_KW(mp_builtin_open_obj, 0, builtin_open);

// --- The program -----------------------------------------------------------------------------------

typedef struct {
    mp_obj_t source;
    mp_obj_t code;
} program_t;

static mp_obj_t read_source(void) {
    int32_t size = language_source_read(NULL, 0);
    vstr_t source;
    vstr_init_len(&source, size < 0 ? 0 : size);
    language_source_read(source.buf, source.len);
    return mp_obj_new_str_from_utf8_vstr(&source);
}

static void compile(void *ctx) {
    program_t *program = ctx;
    program->source = read_source();
    size_t len;
    const char *text = mp_obj_str_get_data(program->source, &len);
    mp_lexer_t *lexer = mp_lexer_new_from_str_len(source_name, text, len, 0);
    mp_parse_tree_t tree = mp_parse(lexer, MP_PARSE_FILE_INPUT);
    program->code = mp_compile(&tree, source_name, false);
}

static void run(void *ctx) {
    program_t *program = ctx;
    compile(ctx);
    mp_obj_t entry = mp_import_name(qstr_from_str("symphony._entry"), mp_const_true, MP_OBJ_NEW_SMALL_INT(0));
    mp_call_function_2(mp_load_attr(entry, MP_QSTR_run), program->code, MP_OBJ_FROM_PTR(mp_globals_get()));
}

// --- What is told of an exception ------------------------------------------------------------------

static bool is_user_s(qstr file) {
    return file == source_name;
}

static void print_frame(const mp_print_t *print, const size_t *frame) {
    mp_printf(print, "  File \"%q\", line %u", (qstr)frame[0], (unsigned)frame[1]);
    mp_printf(print, frame[2] == MP_QSTRnull ? "\n" : ", in %q\n", (qstr)frame[2]);
}

// As CPython's, but for the frames of the frozen library, and those in the middle of a long one.
static void print_exception(const mp_print_t *print, mp_obj_t exception) {
    size_t count, *frames, shown = 0, all = 0;
    mp_obj_exception_get_traceback(exception, &count, &frames);
    for (size_t i = 0; i < count; i += 3) {
        all += is_user_s(frames[i]);
    }
    mp_print_str(print, all > 0 ? "Traceback (most recent call last):\n" : "");
    for (size_t i = count; i >= 3; i -= 3) {
        if (!is_user_s(frames[i - 3])) {
            continue;
        }
        if (shown < FRAMES_FIRST || shown + FRAMES_LAST >= all) {
            print_frame(print, frames + i - 3);
        } else if (shown == FRAMES_FIRST) {
            mp_printf(print, "  ... %u more\n", (unsigned)(all - FRAMES_FIRST - FRAMES_LAST));
        }
        ++shown;
    }
    mp_obj_print_helper(print, exception, PRINT_EXC);
}

typedef struct {
    mp_obj_t exception;
    vstr_t text;
} report_t;

static void describe(void *ctx) {
    report_t *report = ctx;
    mp_print_t print;
    vstr_init_print(&report->text, 256, &print);
    print_exception(&print, report->exception);
}

// The text of an exception. Where there is no memory for it, its type's name.
static vstr_t text_of(mp_obj_t exception) {
    nlr_buf_t nlr;
    report_t report = {exception, {0}};
    if (!nlr_try(&nlr, describe, &report)) {
        const char *name = qstr_str(mp_obj_get_type(exception)->name);
        report.text = (vstr_t) {.buf = (char *)name, .len = strlen(name), .fixed_buf = true};
    }
    return report.text;
}

static bool is_a(mp_obj_t exception, const mp_obj_type_t *type) {
    return mp_obj_is_subclass_fast(MP_OBJ_FROM_PTR(mp_obj_get_type(exception)), MP_OBJ_FROM_PTR(type));
}

static void exit_code(void *ctx) {
    mp_obj_t *value = ctx;
    *value = mp_obj_exception_get_value(*value);
}

static int32_t code_of(mp_obj_t exception) {
    nlr_buf_t nlr;
    mp_obj_t value = exception;
    if (!nlr_try(&nlr, exit_code, &value)) {
        return 1;
    }
    if (mp_obj_is_small_int(value)) {
        return MP_OBJ_SMALL_INT_VALUE(value);
    }
    return value == mp_const_none ? 0 : 1;
}

// --- The exports -----------------------------------------------------------------------------------

static void begin(void) {
    mp_cstack_init_with_top((char *)STACK_BYTES, STACK_BYTES_USED_MAX);
    char *heap = malloc(HEAP_BYTES_FIRST);
    gc_init(heap, heap + HEAP_BYTES_FIRST);
    mp_init();
    source_name = qstr_from_str("main.py");
    mp_store_global(MP_QSTR___name__, MP_OBJ_NEW_QSTR(MP_QSTR_program)); // not __main__: that is for attached ones
}

// The run ends with what is known of the exception.
static NORETURN void fail(mp_obj_t exception) {
    vstr_t text = text_of(exception);
    while (text.len > 0 && text.buf[text.len - 1] == '\n') {
        --text.len;
    }
    language_fail(text.buf, text.len);
}

// The same as one line with the place, for who uploads the source.
static void describe_syntax(void *ctx) {
    report_t *report = ctx;
    size_t count, *frames;
    mp_print_t print;
    vstr_init_print(&report->text, 256, &print);
    mp_obj_exception_get_traceback(report->exception, &count, &frames);
    if (count >= 3) {
        mp_printf(&print, "line %u", (unsigned)frames[1]);
        mp_printf(&print, symphony_syntax_column > 0 ? ", column %u: " : ": ", (unsigned)symphony_syntax_column);
    }
    mp_obj_print_helper(&print, report->exception, PRINT_EXC);
}

int32_t lip_main(void);
int32_t check(void);

int32_t lip_main(void) {
    program_t program = {MP_OBJ_NULL, MP_OBJ_NULL};
    nlr_buf_t nlr;
    begin();
    bool ended = nlr_try(&nlr, run, &program);
    symphony_flush();
    if (ended) {
        return 0;
    }
    mp_obj_t exception = MP_OBJ_FROM_PTR(nlr.ret_val);
    if (!is_a(exception, &mp_type_SystemExit)) {
        fail(exception);
    }
    return code_of(exception);
}

int32_t check(void) {
    program_t program = {MP_OBJ_NULL, MP_OBJ_NULL};
    nlr_buf_t nlr;
    begin();
    if (!nlr_try(&nlr, compile, &program)) {
        report_t report = {MP_OBJ_FROM_PTR(nlr.ret_val), {0}};
        if (nlr_try(&nlr, describe_syntax, &report)) {
            language_fail(report.text.buf, report.text.len);
        }
        fail(report.exception);
    }
    return 0;
}
