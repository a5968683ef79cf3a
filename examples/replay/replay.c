/* replay: plays a recorded trace of allocations against a pool of your choice and tells what it costs.
 *
 * The pool, the streams and the order between them are the model's, so no GPU is needed; what is reserved, reused and
 * asked of the device is what a GPU would have seen. Traces of both versions are read, gzip or not.
 *
 * Exit status: 0 done, 1 the trace or the replay failed (the text names file and line), or the output could not be
 * written, 2 the command line is wrong.
 */
#include <smp.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "usage: replay TRACE[.gz] [--pools SPEC] [--device-call-ns N] [--format table|kv]\n";
static const char help[] =
    "\n"
    "  TRACE               a trace of version 1 (op,id,size,stream[,thread]) or 2; gzip is recognised\n"
    "  --pools SPEC        the pool to use, such as \"preset(cuda)\" or\n"
    "                      \"sliced(page_size=64MiB, max_slice_size=8MiB); direct()\"\n"
    "                      (default: the trace's own, or the default preset)\n"
    "  --device-call-ns N  what each call to the device is taken to cost (default: 0)\n"
    "  --format table|kv   a table for people (default), or one line of key=value\n"
    "  --help              this text\n";

struct request {
    const char *trace;
    const char *pools;
    uint64_t device_call_ns;
    int kv;
};

static int usage_error(const char *what, const char *argument)
{
    fprintf(stderr, "replay: %s%s%s\n%s(replay --help tells more)\n", what, argument ? ": " : "",
            argument ? argument : "", usage);
    return 2;
}

static int parse_number(const char *text, uint64_t *out)
{
    char *end;
    unsigned long long value;
    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return 0;
    *out = value;
    return 1;
}

/* What was printed may still be on its way: to a full disk, say. */
static int printed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fprintf(stderr, "replay: standard output: %s\n", strerror(errno));
    return 1;
}

/* 0: go on; else the exit status, less one so that --help (exit 0) is told from "go on". */
static int parse(int argc, char **argv, struct request *request)
{
    int i, options = 1;
    for (i = 1; i < argc; ++i) {
        const char *argument = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!options || argument[0] != '-') {
            if (request->trace != NULL)
                return 1 + usage_error("more than one trace", argument);
            request->trace = argument;
        } else if (strcmp(argument, "--") == 0) {
            options = 0;
        } else if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            printf("%s%s", usage, help);
            return 1 + printed();
        } else if (strcmp(argument, "--pools") != 0 && strcmp(argument, "--device-call-ns") != 0 &&
                   strcmp(argument, "--format") != 0) {
            return 1 + usage_error("unknown option", argument);
        } else if (value == NULL) {
            return 1 + usage_error("a value is missing after", argument);
        } else if (++i, strcmp(argument, "--pools") == 0) {
            request->pools = value;
        } else if (strcmp(argument, "--device-call-ns") == 0) {
            if (!parse_number(value, &request->device_call_ns))
                return 1 + usage_error("--device-call-ns takes a whole number of nanoseconds", value);
        } else if (strcmp(value, "kv") == 0 || strcmp(value, "table") == 0) {
            request->kv = strcmp(value, "kv") == 0;
        } else {
            return 1 + usage_error("--format takes table or kv", value);
        }
    }
    if (request->trace == NULL)
        return 1 + usage_error("no trace given", NULL);
    return 0;
}

struct bar {
    int shown; /* the percentage on the screen, -1 if none */
};

static void show_progress(void *user, uint64_t done, uint64_t total)
{
    struct bar *bar = (struct bar *)user;
    int percent = total != 0 ? (int)((double)done * 100 / (double)total) : 0;
    if (percent != bar->shown) {
        bar->shown = percent;
        fprintf(stderr, "\rreplaying: %3d %%", percent);
        fflush(stderr);
    }
}

/* The file's name without its folder, as the line's readers know traces. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void print_bytes(const char *what, uint64_t bytes)
{
    printf("  %-22s %15" PRIu64 "  (%.1f MiB)\n", what, bytes, (double)bytes / (1 << 20));
}

int main(int argc, char **argv)
{
    struct request request = {NULL, NULL, 0, 0};
    struct bar bar = {-1};
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result result = SMP_REPLAY_RESULT_INIT;
    double efficiency, ns_per_event;
    smp_status status;
    int stop = parse(argc, argv, &request);
    if (stop != 0)
        return stop - 1;

    options.pools = request.pools;
    options.device_call_ns = request.device_call_ns;
    if (isatty(fileno(stderr))) {
        options.progress = show_progress;
        options.progress_user = &bar;
    }
    status = smp_trace_replay(request.trace, &options, &result);
    if (bar.shown >= 0)
        fprintf(stderr, "\r                    \r");
    if (status != SMP_SUCCESS) {
        smp_error error = SMP_ERROR_INIT;
        smp_last_error(&error);
        fprintf(stderr, "replay: %s\n", error.text);
        /* A pool specification comes from the command line. */
        return status == SMP_ERROR_SPEC_SYNTAX || status == SMP_ERROR_INVALID_CONFIG ? 2 : 1;
    }

    /* Nothing reserved is nothing wasted. */
    efficiency = result.reserved_peak != 0 ? (double)result.live_peak / (double)result.reserved_peak : 1.0;
    ns_per_event = result.events != 0 ? (double)result.elapsed_ns / (double)result.events : 0.0;
    if (request.kv) {
        printf("trace=%s events=%" PRIu64 " live_peak=%" PRIu64 " reserved_peak=%" PRIu64 " efficiency=%.4f"
               " pages_peak=%" PRIu64 " device_calls=%" PRIu64 " ns_per_event=%.1f failures=%" PRIu64 "\n",
               name_of(request.trace), result.events, result.live_peak, result.reserved_peak, efficiency,
               result.pages_peak, result.device_calls, ns_per_event, result.failures);
    } else {
        printf("%s (version %" PRIu32 ")\n", name_of(request.trace), result.version);
        printf("  %-22s %15" PRIu64 "  (%" PRIu64 " allocations, %" PRIu64 " frees, %" PRIu64 " streams)\n", "events",
               result.events, result.allocs, result.frees, result.streams);
        print_bytes("live at the peak", result.live_peak);
        print_bytes("used at the peak", result.used_peak);
        print_bytes("reserved at the peak", result.reserved_peak);
        printf("  %-22s %15.4f  (live / reserved, each at its peak)\n", "efficiency", efficiency);
        printf("  %-22s %15" PRIu64 "\n", "pages at the peak", result.pages_peak);
        printf("  %-22s %15" PRIu64 "\n", "device calls", result.device_calls);
        printf("  %-22s %15" PRIu64 "\n", "failed allocations", result.failures);
        printf("  %-22s %15.1f\n", "ns per event", ns_per_event);
    }
    return printed();
}
