/* The two passes for one element type and one vector width. Included once for each by _kernel.c, which defines
 *   REAL    float or double          LANES   elements in a vector
 *   TARGET  the instruction set      TILE    rows whose products are summed in registers at once
 *   WIDE    vectors of each combination in registers at once
 *   NAME(x) x, with a suffix of its own
 */

typedef REAL NAME(vector) __attribute__((vector_size(LANES * sizeof(REAL))));
typedef REAL NAME(loaded) __attribute__((vector_size(LANES * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
typedef double NAME(lanes) __attribute__((vector_size(LANES * sizeof(double))));
#define VECTOR NAME(vector)
#define LOADED NAME(loaded)
#define SUMS NAME(lanes)

/* sums[i][j] += products of row i of `left` [m] with row j of `right` [n]; of j >= i only, where both are the same rows.
 * The sums in registers are short (RUN / LANES additions each) and are then added up in double, lane by lane.
 * Meanwhile the next run of the rows `soon` is fetched. */
TARGET ALWAYS_INLINE static void NAME(tile)(const REAL *const *left, const REAL *const *right, int m, int n, int same,
                                            long start, long stop, const REAL *const *soon, long fetches,
                                            SUMS *const *sums) {
    VECTOR total[TILE][TILE];
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = same ? i : 0; j < n; j++) total[i][j] = (VECTOR){0};
    for (long column = start; column < stop; column += LANES) {
        VECTOR a[TILE], b[TILE];
        for (long row = 0; row < fetches; row++) __builtin_prefetch(soon[row] + column + RUN, 0, SECOND_CACHE);
        UNROLL for (int i = 0; i < m; i++) a[i] = *(const LOADED *)(left[i] + column);
        UNROLL for (int j = 0; j < n; j++) {
            if (same)
                b[j] = a[j];
            else
                b[j] = *(const LOADED *)(right[j] + column);
        }
        UNROLL for (int i = 0; i < m; i++)
            UNROLL for (int j = same ? i : 0; j < n; j++) total[i][j] += a[i] * b[j];
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = same ? i : 0; j < n; j++) sums[i][j] += __builtin_convertvector(total[i][j], SUMS);
}

/* The same for tiles of a size known only now; a tile off the diagonal is always TILE rows high. */
#define SIZE(n)                                                                          \
    if (same)                                                                            \
        NAME(tile)(left, right, n, n, 1, start, stop, soon, fetches, sums);              \
    else                                                                                 \
        NAME(tile)(left, right, TILE, n, 0, start, stop, soon, fetches, sums);           \
    break
TARGET static void NAME(pairs)(const REAL *const *left, const REAL *const *right, int n, int same, long start,
                               long stop, const REAL *const *soon, long fetches, SUMS *const *sums) {
    switch (n) {
        case 1: SIZE(1);
        case 2: SIZE(2);
        case 3: SIZE(3);
        default: SIZE(TILE);
    }
}
#undef SIZE

/* partial [pairs] = inner products of all pairs of rows over the columns start..stop. */
TARGET static void NAME(gram)(const void *const *given, long count, long start, long stop, void *scratch,
                              double *partial) {
    const REAL *const *rows = (const REAL *const *)given;
    SUMS *sums = scratch; /* [pairs] */
    const long pairs = count * (count + 1) / 2;
    memset(sums, 0, pairs * sizeof(SUMS));
    for (long begin = start; begin < stop; begin += RUN) {
        const long end = begin + RUN < stop ? begin + RUN : stop;
        const long whole = begin + (end - begin) / LANES * LANES; /* the columns after it do not fill a vector */
        long summed = 0, fetched = 0; /* pairs so far, and rows of which the next run was asked for */
        for (long top = 0; top < count; top += TILE)
            for (long left = top; left < count; left += TILE) {
                const int same = left == top, n = count - left < TILE ? (int)(count - left) : TILE;
                SUMS *at[TILE]; /* at[i][j] is the sum of rows top + i and left + j */
                for (int i = 0; i < (same ? n : TILE); i++)
                    at[i] = sums + pair_of(count, top + i, top + i) - (top + i) + left;
                summed += same ? n * (n + 1) / 2 : TILE * n;
                const long fetches = due(count, pairs, summed) - fetched;
                NAME(pairs)(rows + top, rows + left, n, same, begin, whole, rows + fetched, fetches, at);
                fetched += fetches;
            }
        for (long i = 0, pair = 0; whole < end && i < count; i++)
            for (long j = i; j < count; j++, pair++)
                for (long column = whole; column < end; column++)
                    sums[pair][0] += (double)rows[i][column] * (double)rows[j][column];
    }
    for (long pair = 0; pair < pairs; pair++) {
        double total = 0.0;
        for (int lane = 0; lane < LANES; lane++) total += sums[pair][lane];
        partial[pair] = total;
    }
}

/* out[o][column ...] += sum over rows first..last of coefficients[o][row] * rows[row][column ...] for m outputs and
 * `wide` vectors; what was there before counts from the second rows on. */
TARGET ALWAYS_INLINE static void NAME(blend)(const REAL *const *rows, long count, long first, long last,
                                             const REAL *coefficients, REAL *const *out, int m, int wide,
                                             long column) {
    VECTOR total[OUTPUTS][WIDE];
    UNROLL for (int o = 0; o < m; o++)
        UNROLL for (int v = 0; v < wide; v++) {
            total[o][v] = (VECTOR){0};
            if (first) total[o][v] = ((const LOADED *)(out[o] + column))[v];
        }
    for (long row = first; row < last; row++) {
        const LOADED *from = (const LOADED *)(rows[row] + column);
        VECTOR x[WIDE];
        UNROLL for (int v = 0; v < wide; v++) x[v] = from[v];
        UNROLL for (int o = 0; o < m; o++)
            UNROLL for (int v = 0; v < wide; v++) total[o][v] += coefficients[o * count + row] * x[v];
    }
    UNROLL for (int o = 0; o < m; o++)
        UNROLL for (int v = 0; v < wide; v++) ((LOADED *)(out[o] + column))[v] = total[o][v];
}

/* The same for all columns start..stop of m outputs, a few rows after the other: more streams at once than the
 * processor fetches ahead are slow. The sums are taken in the order of the rows all the same. */
TARGET ALWAYS_INLINE static void NAME(mix)(const REAL *const *rows, long count, const REAL *coefficients,
                                           REAL *const *out, int m, long start, long stop) {
    const long whole = start + (stop - start) / LANES * LANES;
    for (long first = 0; first < count || !first; first += STREAMS) {
        const long last = first + STREAMS < count ? first + STREAMS : count;
        long column = start;
        for (; column + WIDE * LANES <= whole; column += WIDE * LANES)
            NAME(blend)(rows, count, first, last, coefficients, out, m, WIDE, column);
        for (; column < whole; column += LANES) NAME(blend)(rows, count, first, last, coefficients, out, m, 1, column);
    }
    for (long column = whole; column < stop; column++)
        for (int o = 0; o < m; o++) {
            REAL total = 0;
            for (long row = 0; row < count; row++) total += coefficients[o * count + row] * rows[row][column];
            out[o][column] = total;
        }
}

/* out [n, width] = coefficients [n, count] @ rows, over the columns start..stop; rows stay in cache between outputs. */
TARGET static void NAME(combine)(const void *const *given, long count, const void *table, void *out, long n,
                                 long width, long start, long stop) {
    const REAL *const *rows = (const REAL *const *)given;
    for (long begin = start; begin < stop; begin += RUN) {
        const long end = begin + RUN < stop ? begin + RUN : stop;
        for (long first = 0; first < n; first += OUTPUTS) {
            const REAL *coefficients = (const REAL *)table + first * count;
            REAL *to[OUTPUTS];
            for (int o = 0; o < OUTPUTS; o++) to[o] = (REAL *)out + (first + o) * width;
            switch (n - first) {
                case 1: NAME(mix)(rows, count, coefficients, to, 1, begin, end); break;
                case 2: NAME(mix)(rows, count, coefficients, to, 2, begin, end); break;
                case 3: NAME(mix)(rows, count, coefficients, to, 3, begin, end); break;
                default: NAME(mix)(rows, count, coefficients, to, OUTPUTS, begin, end);
            }
        }
    }
}

#undef VECTOR
#undef LOADED
#undef SUMS
#undef REAL
#undef LANES
#undef NAME
