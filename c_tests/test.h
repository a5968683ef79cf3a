/* test.h: the smallest test frame that tells what went wrong.
 *
 * A test is a `static void name(void)`; its name states the rule it checks. main() is
 *
 *     TEST_MAIN(RUN(first_rule) RUN(second_rule))
 *
 * Each test prints one line, `ok name` or `FAILED name`. A check that fails prints file, line, the expression and the
 * values, and the test goes on; the program's exit status is 1. A test whose set-up fails is left with test_abandon() and
 * fails alone. A test that executes no check fails, so does a program that runs no test: a test that cannot fail is worth
 * nothing. `test_x WORD` runs the tests whose names hold WORD.
 *
 * Compiles as C99 and as C++11.
 */
#ifndef SMP_C_TESTS_TEST_H
#define SMP_C_TESTS_TEST_H

#include <smp.h>

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
#include <exception>
#else
#include <setjmp.h>
#endif

static unsigned long test_checks;   /* executed in the current test */
static unsigned long test_failures; /* in the current test */
static int test_run_count;
static int test_failed_count;
static int test_left_out_count; /* named with their reason, on a device that cannot have them */

/* Leaves the current test, which fails. Not from a callback or another thread. */
#ifdef __cplusplus
struct test_abandoned : std::exception {
    const char *what() const noexcept override { return "its set-up failed"; }
};
[[noreturn]] static inline void test_abandon() { throw test_abandoned(); }
#else
static jmp_buf test_jump;
static inline void test_abandon(void)
{
    longjmp(test_jump, 1);
}
#endif

/* The next of a sequence of numbers that is the same in each run; `*state` is not 0. */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void test_note(int holds, const char *file, int line, const char *what)
{
    ++test_checks;
    if (!holds) {
        ++test_failures;
        printf("%s:%d: does not hold: %s\n", file, line, what);
    }
}

static inline void test_note_eq(uint64_t actual, uint64_t expected, const char *file, int line, const char *what)
{
    ++test_checks;
    if (actual != expected) {
        ++test_failures;
        printf("%s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), expected %" PRIu64 " (0x%" PRIx64 ")\n", file, line, what,
               actual, actual, expected, expected);
    }
}

static inline void test_note_str(const char *actual, const char *expected, const char *file, int line,
                                 const char *what)
{
    ++test_checks;
    if (actual == NULL || strcmp(actual, expected) != 0) {
        ++test_failures;
        printf("%s:%d: %s is \"%s\", expected \"%s\"\n", file, line, what, actual ? actual : "(null)", expected);
    }
}

static inline void test_note_has(const char *text, const char *word, const char *file, int line, const char *what)
{
    ++test_checks;
    if (text == NULL || strstr(text, word) == NULL) {
        ++test_failures;
        printf("%s:%d: %s does not hold \"%s\": \"%s\"\n", file, line, what, word, text ? text : "(null)");
    }
}

/* The condition holds. */
#define CHECK(condition) test_note((condition) ? 1 : 0, __FILE__, __LINE__, #condition)
/* Two integers are equal; both are printed if not. */
#define CHECK_EQ(actual, expected)                                                                                    \
    test_note_eq((uint64_t)(actual), (uint64_t)(expected), __FILE__, __LINE__, #actual)
/* Two pointers (or handles) are equal, or are not. */
#define CHECK_SAME(actual, expected)                                                                                  \
    test_note_eq((uint64_t)(uintptr_t)(actual), (uint64_t)(uintptr_t)(expected), __FILE__, __LINE__, #actual)
#define CHECK_NULL(actual) test_note_eq((uint64_t)(uintptr_t)(actual), 0, __FILE__, __LINE__, #actual)
/* Two strings are equal; a string holds a word. */
#define CHECK_STR(actual, expected) test_note_str((actual), (expected), __FILE__, __LINE__, #actual)
#define CHECK_HAS(text, word) test_note_has((text), (word), __FILE__, __LINE__, #text)

static inline void test_one(void (*test)(void), const char *name, const char *word)
{
    if (word != NULL && strstr(name, word) == NULL)
        return;
    test_checks = 0;
    test_failures = 0;
#ifdef __cplusplus
    try {
        test();
    } catch (const std::exception &error) {
        ++test_failures;
        printf("%s threw: %s\n", name, error.what());
    }
#else
    if (setjmp(test_jump) == 0) {
        test();
    } else {
        ++test_failures;
        printf("%s: its set-up failed\n", name);
    }
#endif
    ++test_run_count;
    if (test_checks == 0) {
        ++test_failures;
        printf("%s executed no check\n", name);
    }
    if (test_failures != 0)
        ++test_failed_count;
    printf("%s %s (%lu checks)\n", test_failures ? "FAILED" : "ok", name, test_checks);
    fflush(stdout);
}

static inline int test_end(void)
{
    printf("%d tests, %d failed, %d left out\n", test_run_count, test_failed_count, test_left_out_count);
    if (test_run_count + test_left_out_count == 0)
        printf("no test ran\n");
    return test_run_count + test_left_out_count == 0 || test_failed_count != 0;
}

#define RUN(test) test_one(test, #test, test_word);
#define TEST_MAIN(tests)                                                                                              \
    int main(int argc, char **argv)                                                                                   \
    {                                                                                                                 \
        const char *test_word = argc > 1 ? argv[1] : NULL;                                                            \
        tests return test_end();                                                                                      \
    }

#endif
