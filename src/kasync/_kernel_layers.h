/* The loops of _kernel_layers.c, which includes this once for each instruction set and defines
 *   TARGET  the instruction set      NAME(x) x, with a suffix of its own
 */

typedef float NAME(eight) __attribute__((vector_size(32)));
typedef float NAME(eight_loaded) __attribute__((vector_size(32), aligned(4), may_alias));
typedef int NAME(bits) __attribute__((vector_size(32)));
#define EIGHT NAME(eight)
#define LOAD(address) (*(const NAME(eight_loaded) *)(address))
#define STORE(address) (*(NAME(eight_loaded) *)(address))

/* A part of one row of `count` outputs: eight columns at each of `vectors` places.
 * x [inputs, height, width] from this row on, weights and y from these outputs on. */
TARGET ALWAYS_INLINE static void NAME(row)(const float *x, const float *weights, const float *bias, Shape shape,
                                           const long *places, int count, int vectors, float *y) {
    const long size = shape.inputs * shape.kernel_height * shape.kernel_width;
    const long plane = shape.out_height * shape.out_width;
    EIGHT sums[ABREAST][VECTORS];
    UNROLL_ALL for (int o = 0; o < count; o++)
        UNROLL_ALL for (int v = 0; v < vectors; v++) sums[o][v] = (EIGHT){0} + (bias ? bias[o] : 0.0f);
    for (long c = 0; c < shape.inputs; c++)
        for (long r = 0; r < shape.kernel_height; r++)
            for (long k = 0; k < shape.kernel_width; k++, weights++) {
                const float *from = x + (c * shape.height + r) * shape.width + k;
                EIGHT inputs[VECTORS];
                UNROLL_ALL for (int v = 0; v < vectors; v++) inputs[v] = LOAD(from + places[v]);
                UNROLL_ALL for (int o = 0; o < count; o++)
                    UNROLL_ALL for (int v = 0; v < vectors; v++) sums[o][v] += weights[o * size] * inputs[v];
            }
    UNROLL_ALL for (int o = 0; o < count; o++)
        UNROLL_ALL for (int v = 0; v < vectors; v++) STORE(y + o * plane + places[v]) = sums[o][v];
}

#define ROW(o, v)                                            \
    case 10 * o + v:                                         \
        NAME(row)(x, weights, bias, shape, places, o, v, y); \
        break;
#define ROWS(o) ROW(o, 1) ROW(o, 2) ROW(o, 3) ROW(o, 4)

/* The same for numbers known only now. */
TARGET static void NAME(convolve)(const float *x, const float *weights, const float *bias, Shape shape,
                                  const long *places, int count, int vectors, float *y) {
    switch (10 * count + vectors) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) }
}
#undef ROW
#undef ROWS

/* out [count, kernel_width], outputs `size` apart: the gradient of one row of the kernel, for one input channel.
 * x from that row and channel on, grad [samples, outputs, out_height, padded] from the first of the outputs on. */
TARGET ALWAYS_INLINE static void NAME(kernel_row)(const float *x, const float *grad, Shape shape, long padded,
                                                  long samples, int count, int kernel_width, float *out) {
    const long picture = shape.inputs * shape.height * shape.width, plane = shape.out_height * padded;
    EIGHT sums[TOGETHER][WIDEST];
    UNROLL_ALL for (int o = 0; o < count; o++)
        UNROLL_ALL for (int k = 0; k < kernel_width; k++) sums[o][k] = (EIGHT){0};
    for (long sample = 0; sample < samples; sample++)
        for (long row = 0; row < shape.out_height; row++) {
            const float *inputs = x + sample * picture + row * shape.width;
            const float *mine = grad + sample * shape.outputs * plane + row * padded;
            for (long column = 0; column < padded; column += 8) {
                EIGHT g[TOGETHER];
                UNROLL_ALL for (int o = 0; o < count; o++) g[o] = LOAD(mine + o * plane + column);
                UNROLL_ALL for (int k = 0; k < kernel_width; k++) {
                    const EIGHT shifted = LOAD(inputs + column + k);
                    UNROLL_ALL for (int o = 0; o < count; o++) sums[o][k] += g[o] * shifted;
                }
            }
        }
    const long size = shape.inputs * shape.kernel_height * shape.kernel_width;
    UNROLL_ALL for (int o = 0; o < count; o++)
        UNROLL_ALL for (int k = 0; k < kernel_width; k++) out[o * size + k] = TOTAL(sums[o][k]);
}

#define COUNT(o, k)                                                       \
    case 10 * o + k:                                                      \
        NAME(kernel_row)(x, grad, shape, padded, samples, o, k, out);     \
        break;
#define COUNTS(k) COUNT(1, k) COUNT(2, k) COUNT(3, k)

/* The same for numbers known only now. */
TARGET static void NAME(some)(const float *x, const float *grad, Shape shape, long padded, long samples, int count,
                              float *out) {
    switch (10 * count + shape.kernel_width) { COUNTS(1) COUNTS(2) COUNTS(3) COUNTS(4) COUNTS(5) COUNTS(6) COUNTS(7) }
}
#undef COUNT
#undef COUNTS

/* One client's gradient of weights [outputs, inputs, kernel_height, kernel_width] and, where it is not NULL, of bias
 * [outputs]. */
TARGET static void NAME(weights)(const float *x, const float *grad, Shape shape, long padded, long samples,
                                 float *weights, float *bias) {
    for (long c = 0; c < shape.inputs; c++)
        for (long r = 0; r < shape.kernel_height; r++)
            for (long o = 0; o < shape.outputs; o += TOGETHER)
                NAME(some)(x + (c * shape.height + r) * shape.width, grad + o * shape.out_height * padded, shape, padded,
                           samples, shape.outputs - o < TOGETHER ? shape.outputs - o : TOGETHER,
                           weights + ((o * shape.inputs + c) * shape.kernel_height + r) * shape.kernel_width);
    for (long o = 0; bias && o < shape.outputs; o++) {
        EIGHT sum = {0};
        for (long sample = 0; sample < samples; sample++)
            for (long i = 0; i < shape.out_height * padded; i += 8)
                sum += LOAD(grad + (sample * shape.outputs + o) * shape.out_height * padded + i);
        bias[o] = TOTAL(sum);
    }
}

/* weights [count, columns], rows `inputs` apart = grad^T x, for grad [samples, count] and x [samples, padded], where
 * padded is a multiple of 16 and what lies beyond `columns` is not written. */
TARGET ALWAYS_INLINE static void NAME(products)(const float *x, const float *grad, long samples, long columns,
                                                long padded, long inputs, int count, float *weights) {
    for (long i = 0; i < columns; i += 16) {
        EIGHT sums[BESIDE][2];
        UNROLL_ALL for (int o = 0; o < count; o++) sums[o][0] = sums[o][1] = (EIGHT){0};
        for (long sample = 0; sample < samples; sample++) {
            const EIGHT left = LOAD(x + sample * padded + i), right = LOAD(x + sample * padded + i + 8);
            UNROLL_ALL for (int o = 0; o < count; o++) {
                sums[o][0] += grad[sample * count + o] * left;
                sums[o][1] += grad[sample * count + o] * right;
            }
        }
        if (columns - i >= 16)
            UNROLL_ALL for (int o = 0; o < count; o++) {
                STORE(weights + o * inputs + i) = sums[o][0];
                STORE(weights + o * inputs + i + 8) = sums[o][1];
            }
        else
            for (int o = 0; o < count; o++) memcpy(weights + o * inputs + i, sums[o], (columns - i) * sizeof(float));
    }
}

#define COUNT(count)                                                               \
    case count:                                                                    \
        NAME(products)(x, grad, samples, columns, padded, inputs, count, weights); \
        break;

/* One client's gradient of weights [outputs, inputs] and, where it is not NULL, of bias [outputs], of a dense layer,
 * from x [samples, inputs] and grad [samples, outputs]. Both are copied into pieces that a cache holds: `tile` is the
 * room for [samples, broadest] of x, `packed` that for all of grad, a few outputs after the other. */
TARGET static void NAME(dense)(const float *all, const float *grads, long inputs, long outputs, long samples,
                               long broadest, float *tile, float *packed, float *out, float *bias) {
    for (long o = 0; o < outputs; o += BESIDE) {
        const long count = outputs - o < BESIDE ? outputs - o : BESIDE;
        for (long sample = 0; sample < samples; sample++)
            memcpy(packed + o * samples + sample * count, grads + sample * outputs + o, count * sizeof(float));
    }
    for (long from = 0; from < inputs; from += broadest) {
        const long columns = inputs - from < broadest ? inputs - from : broadest, padded = (columns + 15) / 16 * 16;
        for (long sample = 0; sample < samples; sample++) {
            memcpy(tile + sample * padded, all + sample * inputs + from, columns * sizeof(float));
            memset(tile + sample * padded + columns, 0, (padded - columns) * sizeof(float));
        }
        for (long o = 0; o < outputs; o += BESIDE) {
            const float *x = tile, *grad = packed + o * samples;
            float *weights = out + o * inputs + from;
            switch (outputs - o) {
                COUNT(1) COUNT(2) COUNT(3) COUNT(4) COUNT(5)
                default: COUNT(6)
            }
        }
    }
    for (long o = 0; bias && o < outputs; o++) {
        bias[o] = 0.0f;
        for (long sample = 0; sample < samples; sample++) bias[o] += grads[sample * outputs + o];
    }
}
#undef COUNT

/* What the macros POOL and UNPOOL of _kernel_layers.c are made of, for vectors of eight and of four. */
typedef float NAME(four) __attribute__((vector_size(16)));
typedef float NAME(four_loaded) __attribute__((vector_size(16), aligned(4), may_alias));
typedef int NAME(four_bits) __attribute__((vector_size(16)));
#define REAL_8 NAME(eight)
#define REAL_4 NAME(four)
#define BITS_8 NAME(bits)
#define BITS_4 NAME(four_bits)
#define AT_8(address) (*(NAME(eight_loaded) *)(address))
#define AT_4(address) (*(NAME(four_loaded) *)(address))

TARGET static void NAME(pool)(const float *x, long lines, long width, float *y) {
    for (long line = 0; line < lines; line++, x += 2 * width, y += width / 2) {
        if (width >= 16)
            POOL(8)
        else if (width >= 8)
            POOL(4)
        else
            for (long i = 0; i < width; i += 2) {
                const float top = LARGER(x[i], x[i + 1]), bottom = LARGER(x[width + i], x[width + i + 1]);
                y[i / 2] = LARGER(top, bottom);
            }
    }
}

TARGET static void NAME(unpool)(const float *x, const float *y, const float *grad, long lines, long width,
                                float *back) {
    for (long line = 0; line < lines; line++, x += 2 * width, back += 2 * width, y += width / 2, grad += width / 2) {
        if (width >= 16)
            UNPOOL(8)
        else if (width >= 8)
            UNPOOL(4)
        else
            for (long i = 0; i < width; i += 2) {
                const float largest = y[i / 2], given = grad[i / 2];
                const int a = x[i] == largest, b = !a & (x[i + 1] == largest), c = !a & !b & (x[width + i] == largest);
                back[i] = a ? given : 0.0f;
                back[i + 1] = b ? given : 0.0f;
                back[width + i] = c ? given : 0.0f;
                back[width + i + 1] = a | b | c ? 0.0f : given;
            }
    }
}
#undef EIGHT
#undef LOAD
#undef STORE
#undef REAL_8
#undef REAL_4
#undef BITS_8
#undef BITS_4
#undef AT_8
#undef AT_4
