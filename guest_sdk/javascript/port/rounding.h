/* Directed rounding of printf, which WebAssembly lacks: QuickJS finds ties with it (toFixed). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rounding; /* FE_TONEAREST, FE_DOWNWARD or FE_UPWARD of the command line */

/* Add one to the last digit of a decimal; 1: the carry has left its first digit, which is 1 now. */
static int increment(char *first, char *end)
{
    for (char *at = end; at-- > first;) {
        if (*at == '.')
            continue;
        if (*at != '9')
            return ++*at, 0;
        *at = '0';
    }
    *first = '1';
    return 1;
}

/* Print a double by "%+.*e" or "%.*f": all digits first, then the cut. */
static int print_directed(char *out, size_t room, const char *format, int digits, double value)
{
    static char exact[1600];
    snprintf(exact, sizeof exact, format, 1100, value);
    char *dot = strchr(exact, '.'), *exponent = strchr(exact, 'e');
    char *end = exponent ? exponent : exact + strlen(exact), *cut = dot + (digits ? 1 + digits : 0);
    int rest = strspn(dot + 1 + digits, "0") < (size_t)(end - (dot + 1 + digits));
    int power = exponent ? atoi(exponent + 1) : 0;
    char *first = exact + strspn(exact, "+-");
    int carried = rest && rounding == (*exact == '-' ? FE_DOWNWARD : FE_UPWARD)
        ? increment(first, cut) : 0;
    *cut = 0;
    if (exponent)
        return snprintf(out, room, "%se%+03d", exact, power + carried);
    const char *zero = carried ? "0" : ""; /* 9.9 -> 10.0: the digits have moved by one */
    int whole = dot - exact;
    return snprintf(out, room, "%.*s%s%s", whole, exact, zero, digits ? dot : "");
}

static int print_rounded(char *out, size_t room, const char *format, ...)
{
    va_list given;
    va_start(given, format);
    int length;
    if (rounding != FE_TONEAREST && (!strcmp(format, "%+.*e") || !strcmp(format, "%.*f"))) {
        int digits = va_arg(given, int);
        length = print_directed(out, room, format, digits, va_arg(given, double));
    } else {
        length = vsnprintf(out, room, format, given);
    }
    va_end(given);
    return length;
}

#define fesetround(mode) (rounding = (mode))
#define snprintf print_rounded
