/* Inner products and linear combinations of a few long rows, as fast as the rows can be read.
 *
 * The columns are cut into at most PARTS parts that depend on their number alone; threads take parts as they get free,
 * and what each part gives is added up in the order of the columns: the result does not depend on the threads.
 * No call into Python or torch: see _kernel_module.c.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "_kernel_calls.h"

#define PARTS 64  /* most parts the columns are cut into, so most threads of use */
#define RUN 1024  /* columns summed in the rows' own precision, and kept in the nearest caches */
#define OUTPUTS 4 /* combinations formed at once */
#define STREAMS 16 /* rows read at a time by a combination */
#define ALWAYS_INLINE __attribute__((always_inline)) inline
#define UNROLL _Pragma("GCC unroll 4")
#define FIRST_CACHE 3 /* where a prefetch puts things */
#define SECOND_CACHE 2
#define LINE 64   /* bytes of a cache line */
#define AHEAD 640 /* bytes that a combination fetches ahead in each row */

/* Where the product of rows i <= j lies among all pairs. */
static ALWAYS_INLINE long pair_of(long count, long i, long j) { return i * count - i * (i - 1) / 2 + (j - i); }

/* Prefetch distance in rows: in proportion to the products done, so that memory and arithmetic keep pace. */
static ALWAYS_INLINE long due(long count, long pairs, long summed) { return (count * summed + pairs - 1) / pairs; }

#define TILE 3 /* 16 vector registers: 9 sums and 6 operands, */
#define WIDE 2 /* or 8 sums and 2 operands */
#define TARGET
#define REAL float
#define LANES 4
#define NAME(x) x##_float_plain
#include "_kernel_tiles.h"
#define REAL double
#define LANES 2
#define NAME(x) x##_double_plain
#include "_kernel_tiles.h"
#undef TARGET

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define REAL float
#define LANES 8
#define NAME(x) x##_float_avx2
#include "_kernel_tiles.h"
#define REAL double
#define LANES 4
#define NAME(x) x##_double_avx2
#include "_kernel_tiles.h"
#undef TARGET
#undef TILE
#undef WIDE

#define TILE 4 /* 32 vector registers */
#define WIDE 2 /* combinations wait for memory, and more columns at a time keep fewer rows coming */
#define TARGET __attribute__((target("avx512f,prefer-vector-width=512")))
#define REAL float
#define LANES 16
#define NAME(x) x##_float_avx512
#include "_kernel_tiles.h"
#define REAL double
#define LANES 8
#define NAME(x) x##_double_avx512
#include "_kernel_tiles.h"
#undef TARGET
#endif

typedef void (*Gram)(const void *const *, long, long, long, void *, double *);
typedef int (*Combine)(const void *const *, long, const void *, const void *, void *, long, long, long, long);
typedef struct {
    Gram gram;
    Combine combine;
    long lanes;
} Passes;

enum { PLAIN, AVX2, AVX512 };
static atomic_int most = AVX512; /* see kasync_level */

static int level(void) {
    int known = PLAIN;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) known = AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) known = AVX512;
#endif
    return known < most ? known : most;
}

/* The passes for this element type on this processor. */
static Passes passes(int is_double) {
    switch (level()) {
#if defined(__x86_64__)
        case AVX512:
            return is_double ? (Passes){gram_double_avx512, combine_double_avx512, 8}
                             : (Passes){gram_float_avx512, combine_float_avx512, 16};
        case AVX2:
            return is_double ? (Passes){gram_double_avx2, combine_double_avx2, 4}
                             : (Passes){gram_float_avx2, combine_float_avx2, 8};
#endif
        default:
            return is_double ? (Passes){gram_double_plain, combine_double_plain, 2}
                             : (Passes){gram_float_plain, combine_float_plain, 4};
    }
}

/* One pass, shared by the threads. */
typedef struct {
    Passes passes;
    const void *const *rows; /* [count] pointers to [width] */
    long count, width;
    long parts, each;     /* parts of `each` columns, the last one shorter */
    atomic_long next;     /* the next part nobody has taken */
    atomic_long workers;  /* threads that have started */
    char *scratch;        /* gram: [threads, scratch_size] */
    size_t scratch_size;
    double *partials;  /* gram: [parts, pairs] */
    const void *table; /* combine: [n, count] */
    const void *start; /* combine: [width] or NULL */
    void *out;         /* combine: [n, width] */
    long n;
    int backwards;      /* combine: begin with the last columns */
    atomic_int broken;  /* combine: something is not finite */
} Job;

static void cut(Job *job) {
    const long runs = (job->width + RUN - 1) / RUN;
    job->each = (runs + PARTS - 1) / PARTS * RUN;
    job->parts = job->each ? (job->width + job->each - 1) / job->each : 0;
}

static void work(void *given) {
    Job *job = given;
    const long worker = atomic_fetch_add(&job->workers, 1);
    for (;;) {
        const long taken = atomic_fetch_add(&job->next, 1);
        if (taken >= job->parts) return;
        const long part = job->backwards ? job->parts - 1 - taken : taken;
        const long start = part * job->each;
        const long stop = start + job->each < job->width ? start + job->each : job->width;
        if (job->partials)
            job->passes.gram(job->rows, job->count, start, stop, job->scratch + worker * job->scratch_size,
                             job->partials + part * (job->count * (job->count + 1) / 2));
        else if (!job->passes.combine(job->rows, job->count, job->table, job->start, job->out, job->n, job->width, start,
                                      stop))
            job->broken = 1;
    }
}

static void *work_in_thread(void *job) {
    work(job);
    return NULL;
}

/* The OpenMP library that torch has loaded, where there is one: its threads are awake, others would fight them. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

static void share(Job *job, long threads) {
    if (threads > job->parts) threads = job->parts;
    if (threads <= 1) {
        work(job);
    } else if (GOMP_parallel) {
        GOMP_parallel(work, job, (unsigned)threads, 0);
    } else {
        pthread_t others[PARTS];
        long started = 0;
        while (started < threads - 1 && pthread_create(&others[started], NULL, work_in_thread, job) == 0) started++;
        work(job);
        while (started > 0) pthread_join(others[--started], NULL);
    }
}

/* The instructions in use from now on: this processor's best up to `limit`. A limit below 0 only asks. */
int kasync_level(int limit) {
    if (limit >= 0) most = limit;
    return level();
}

/* gram [count, count] = inner products of the rows. 0, or 1 when there is no memory. */
int kasync_gram(const void *const *rows, long count, long width, int is_double, long threads, double *gram) {
    const long pairs = count * (count + 1) / 2;
    Job job = {.passes = passes(is_double), .rows = rows, .count = count, .width = width};
    if (threads > PARTS) threads = PARTS;
    if (threads < 1) threads = 1;
    cut(&job);
    job.scratch_size = (pairs * job.passes.lanes * sizeof(double) + 127) / 128 * 128;
    job.scratch = aligned_alloc(128, threads * job.scratch_size + 128);
    job.partials = malloc((job.parts * pairs + 1) * sizeof(double));
    const int failed = !job.scratch || !job.partials;
    if (!failed) {
        share(&job, threads);
        for (long i = 0; i < count; i++)
            for (long j = i; j < count; j++) {
                double total = 0.0;
                for (long part = 0; part < job.parts; part++) total += job.partials[part * pairs + pair_of(count, i, j)];
                gram[i * count + j] = gram[j * count + i] = total;
            }
    }
    free(job.scratch);
    free(job.partials);
    return failed;
}

static int takes_part(const double *coefficients, long count, long n, long row) {
    for (long o = 0; o < n; o++)
        if (coefficients[o * count + row] != 0.0) return 1; /* NaN too */
    return 0;
}

/* out [n, width] = coefficients [n, count] @ rows; the first of them, where `start` [width] is not NULL, is
 * start - rate * (coefficients @ rows) instead. A row whose coefficients are all zero is not read, but for the first
 * `doubtful` rows, of which nobody knows whether they are finite. 0, 1 when there is no memory, or 2 when there are
 * doubtful rows and not everything is finite. */
int kasync_combine(const void *const *rows, long count, long width, int is_double, long threads,
                   const double *coefficients, long n, const void *start, double rate, long doubtful, void *out) {
    const void **read = malloc((count + 1) * sizeof(void *)); /* [used] the rows that take part */
    double *wide = malloc((n * count + 1) * sizeof(double));  /* [n, used] */
    float *narrow = malloc((n * count + 1) * sizeof(float));
    int result = !read || !wide || !narrow;
    if (!result) {
        long used = 0, place = 0;
        for (long row = 0; row < count; row++) used += row < doubtful || takes_part(coefficients, count, n, row);
        for (long row = 0; row < count; row++) {
            if (row >= doubtful && !takes_part(coefficients, count, n, row)) continue;
            for (long o = 0; o < n; o++) {
                const double coefficient = coefficients[o * count + row];
                wide[o * used + place] = start && !o ? -(rate * coefficient) : coefficient;
                narrow[o * used + place] = (float)wide[o * used + place];
            }
            read[place++] = rows[row];
        }
        Job job = {.passes = passes(is_double), .rows = read, .count = used, .width = width};
        job.table = is_double ? (const void *)wide : (const void *)narrow;
        job.start = start;
        job.out = out;
        job.n = n;
        job.backwards = !doubtful; /* rows that were read before: the columns that were read last may be in cache */
        cut(&job);
        share(&job, threads);
        if (doubtful && job.broken) result = 2;
    }
    free(read);
    free(wide);
    free(narrow);
    return result;
}

/* out [width] += coefficients [count] @ rows, in double: rows of floats, cut as above. */
typedef struct {
    const float *const *rows;
    const double *coefficients;
    double *out;
    long count, width, each, parts;
    atomic_long next;
    int level;
} Sum;

#define SAME_BITS optimize("O3", "fp-contract=off") /* whatever instructions there are */
#define ADD_ROWS(name, target)                                                                              \
    target static void name(const Sum *sum, long start, long stop) {                                        \
        for (long from = start; from < stop; from += RUN) {                                                 \
            const long to = from + RUN < stop ? from + RUN : stop;                                          \
            double *const out = sum->out;                                                                   \
            for (long row = 0; row < sum->count; row++) {                                                   \
                const double factor = sum->coefficients[row];                                               \
                const float *const values = sum->rows[row];                                                 \
                if (factor != 0.0)                                                                          \
                    for (long i = from; i < to; i++) out[i] += factor * (double)values[i];                  \
            }                                                                                               \
        }                                                                                                   \
    }

ADD_ROWS(add_rows_plain, __attribute__((SAME_BITS)))
#if defined(__x86_64__)
ADD_ROWS(add_rows_avx2, __attribute__((target("avx2"), SAME_BITS)))
ADD_ROWS(add_rows_avx512, __attribute__((target("avx512f,prefer-vector-width=512"), SAME_BITS)))
#endif

static void add_part(void *given) {
    Sum *sum = given;
    for (;;) {
        const long part = atomic_fetch_add(&sum->next, 1);
        if (part >= sum->parts) return;
        const long start = part * sum->each;
        const long stop = start + sum->each < sum->width ? start + sum->each : sum->width;
        switch (sum->level) {
#if defined(__x86_64__)
            case AVX512: add_rows_avx512(sum, start, stop); break;
            case AVX2: add_rows_avx2(sum, start, stop); break;
#endif
            default: add_rows_plain(sum, start, stop);
        }
    }
}

static void *add_in_thread(void *sum) {
    add_part(sum);
    return NULL;
}

int kasync_add_rows(const float *const *rows, long count, long width, const double *coefficients, long threads,
                    double *out) {
    Sum sum = {.rows = rows, .coefficients = coefficients, .out = out, .count = count, .width = width, .level = level()};
    const long runs = (width + RUN - 1) / RUN;
    sum.each = (runs + PARTS - 1) / PARTS * RUN;
    sum.parts = sum.each ? (width + sum.each - 1) / sum.each : 0;
    if (threads > sum.parts) threads = sum.parts;
    if (threads <= 1) {
        add_part(&sum);
    } else if (GOMP_parallel) {
        GOMP_parallel(add_part, &sum, (unsigned)threads, 0);
    } else {
        pthread_t others[PARTS];
        long started = 0;
        while (started < threads - 1 && pthread_create(&others[started], NULL, add_in_thread, &sum) == 0) started++;
        add_part(&sum);
        while (started > 0) pthread_join(others[--started], NULL);
    }
    return 0;
}
