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
 * `wide` vectors; what was there before counts from the second rows on. What lies AHEAD in the rows is fetched.
 * After the last row `broken` becomes NaN where the first output is not finite, and `start` is added to that. */
TARGET ALWAYS_INLINE static void NAME(blend)(const REAL *const *rows, long count, long first, long last,
                                             const REAL *coefficients, const REAL *start, REAL *const *out, int m,
                                             int wide, long column, VECTOR *broken) {
    VECTOR total[OUTPUTS][WIDE];
    UNROLL for (int o = 0; o < m; o++)
        UNROLL for (int v = 0; v < wide; v++) {
            total[o][v] = (VECTOR){0};
            if (first) total[o][v] = ((const LOADED *)(out[o] + column))[v];
        }
    for (long row = first; row < last; row++) {
        const LOADED *from = (const LOADED *)(rows[row] + column);
        VECTOR x[WIDE];
        UNROLL for (size_t at = 0; at < wide * sizeof(VECTOR); at += LINE)
            __builtin_prefetch((const char *)from + AHEAD + at, 0, FIRST_CACHE);
        UNROLL for (int v = 0; v < wide; v++) x[v] = from[v];
        UNROLL for (int o = 0; o < m; o++)
            UNROLL for (int v = 0; v < wide; v++) total[o][v] += coefficients[o * count + row] * x[v];
    }
    if (last == count)
        UNROLL for (int v = 0; v < wide; v++) {
            *broken += total[0][v] * 0; /* NaN of what is not finite */
            if (start) total[0][v] += ((const LOADED *)(start + column))[v];
        }
    UNROLL for (int o = 0; o < m; o++)
        UNROLL for (int v = 0; v < wide; v++) ((LOADED *)(out[o] + column))[v] = total[o][v];
}

/* The same for all columns begin..end of m outputs, `batch` rows after the other: more streams at once than the
 * processor fetches ahead are slow. The sums are taken in the order of the rows all the same. */
TARGET ALWAYS_INLINE static void NAME(mix)(const REAL *const *rows, long count, long batch, const REAL *coefficients,
                                           const REAL *start, REAL *const *out, int m, long begin, long end,
                                           VECTOR *broken) {
    const long whole = begin + (end - begin) / LANES * LANES;
    VECTOR found = {0};
    for (long first = 0; first < count || !first; first += batch) {
        const long last = first + batch < count ? first + batch : count;
        long column = begin;
        for (; column + WIDE * LANES <= whole; column += WIDE * LANES)
            NAME(blend)(rows, count, first, last, coefficients, start, out, m, WIDE, column, &found);
        for (; column < whole; column += LANES)
            NAME(blend)(rows, count, first, last, coefficients, start, out, m, 1, column, &found);
    }
    for (long column = whole; column < end; column++)
        for (int o = 0; o < m; o++) {
            REAL total = 0;
            for (long row = 0; row < count; row++) total += coefficients[o * count + row] * rows[row][column];
            if (!o) {
                found[0] += total * 0;
                if (start) total += start[column];
            }
            out[o][column] = total;
        }
    *broken += found;
}

/* out [n, width] = coefficients [n, count] @ rows, over the columns first..last; rows stay in cache between outputs.
 * `start` [width] or NULL is added to the first. Returns whether that was finite before. */
TARGET static int NAME(combine)(const void *const *given, long count, const void *table, const void *start, void *out,
                                long n, long width, long first, long last) {
    const REAL *const *rows = (const REAL *const *)given;
    const long batches = (count + STREAMS - 1) / STREAMS, batch = batches ? (count + batches - 1) / batches : 1;
    VECTOR broken = {0}, others = {0};
    for (long begin = first; begin < last; begin += RUN) {
        const long end = begin + RUN < last ? begin + RUN : last;
        for (long top = 0; top < n; top += OUTPUTS) {
            const REAL *coefficients = (const REAL *)table + top * count, *from = top ? NULL : start;
            VECTOR *found = top ? &others : &broken;
            REAL *to[OUTPUTS];
            for (int o = 0; o < OUTPUTS; o++) to[o] = (REAL *)out + (top + o) * width;
            switch (n - top) {
                case 1: NAME(mix)(rows, count, batch, coefficients, from, to, 1, begin, end, found); break;
                case 2: NAME(mix)(rows, count, batch, coefficients, from, to, 2, begin, end, found); break;
                case 3: NAME(mix)(rows, count, batch, coefficients, from, to, 3, begin, end, found); break;
                default: NAME(mix)(rows, count, batch, coefficients, from, to, OUTPUTS, begin, end, found);
            }
        }
    }
    int finite = 1;
    for (int lane = 0; lane < LANES; lane++) finite &= broken[lane] == 0;
    return finite;
}

#undef VECTOR
#undef LOADED
#undef SUMS
#undef REAL
#undef LANES
#undef NAME
