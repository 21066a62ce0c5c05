/* Layers of a small network, for one core that has some clients to itself.
 *
 * What a library of convolutions does well (many channels, many samples) is left to it. Here is what it does badly: few
 * input channels, the weight gradient of a handful of samples, the largest of 2 x 2. All in float, one thread.
 */
#include <stdlib.h>
#include <string.h>

#include "_kernel_calls.h"

#define ALWAYS_INLINE __attribute__((always_inline)) inline
#define UNROLL_ALL _Pragma("GCC unroll 8")
#define TOGETHER 3 /* outputs whose weight gradients are summed at once */
#define WIDEST 7   /* kernel of a weight gradient */
#define BESIDE 6   /* outputs of a dense layer whose weight gradients are */
#define TILE 4096  /* numbers of a dense layer's inputs that are read again and again from the nearest cache */
#define ABREAST 6  /* outputs computed at once, */
#define VECTORS 4  /* in as many vectors each */
#define TOTAL(s) (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SHUFFLE(a, b, type, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#undef SHUFFLE
#define SHUFFLE(a, b, type, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif

/* A convolution without padding, stride or dilation. */
typedef struct {
    long outputs, inputs, kernel_height, kernel_width; /* of the weights */
    long height, width;                                /* of a picture */
    long out_height, out_width;                        /* of its result */
} Shape;

/* Vectors of n = 8 or 4: of 2 n numbers those at even or at odd places; and the way back. */
#define EVEN_8 0, 2, 4, 6, 8, 10, 12, 14
#define EVEN_4 0, 2, 4, 6
#define ODD_8 1, 3, 5, 7, 9, 11, 13, 15
#define ODD_4 1, 3, 5, 7
#define LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#define LOW_4 0, 4, 1, 5
#define HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#define HIGH_4 2, 6, 3, 7
#define PICK(n, which, from) SHUFFLE(AT_##n(from), AT_##n((from) + n), BITS_##n, which##_##n)
#define PAIRS(n, to, even, odd)                                           \
    AT_##n(to) = (REAL_##n)SHUFFLE(even, odd, BITS_##n, LOW_##n);         \
    AT_##n((to) + n) = (REAL_##n)SHUFFLE(even, odd, BITS_##n, HIGH_##n)

/* vector = the larger of vectors a and b. */
#define TAKE_LARGER(n, vector, a, b)                                                  \
    do {                                                                              \
        const REAL_##n one = a, other = b;                                            \
        const BITS_##n first = (one > other) | (one != one);                          \
        vector = (REAL_##n)(((BITS_##n)one & first) | ((BITS_##n)other & ~first));    \
    } while (0)

/* Where the 2 n columns start that are next; the last overlap those before. */
#define FROM(n) (at + 2 * n <= width ? at : width - 2 * n)

#define POOL(n)                                                                       \
    for (long at = 0; at < width; at += 2 * n) {                                      \
        const float *above = x + FROM(n), *below = above + width;                     \
        REAL_##n top, bottom;                                                         \
        TAKE_LARGER(n, top, PICK(n, EVEN, above), PICK(n, ODD, above));               \
        TAKE_LARGER(n, bottom, PICK(n, EVEN, below), PICK(n, ODD, below));            \
        TAKE_LARGER(n, AT_##n(y + FROM(n) / 2), top, bottom);                         \
    }

#define UNPOOL(n)                                                                                  \
    for (long at = 0; at < width; at += 2 * n) {                                                   \
        const float *above = x + FROM(n), *below = above + width;                                  \
        float *to = back + FROM(n);                                                                \
        const REAL_##n largest = AT_##n((float *)y + FROM(n) / 2);                                 \
        const BITS_##n given = (BITS_##n)AT_##n((float *)grad + FROM(n) / 2);                      \
        const BITS_##n a = PICK(n, EVEN, above) == largest;                                        \
        const BITS_##n b = (PICK(n, ODD, above) == largest) & ~a;                                  \
        const BITS_##n c = (PICK(n, EVEN, below) == largest) & ~(a | b), d = ~(a | b | c);         \
        PAIRS(n, to, given & a, given & b);                                                        \
        PAIRS(n, to + width, given & c, given & d);                                                \
    }

#define TARGET
#define NAME(x) x##_plain
#include "_kernel_layers.h"
#undef TARGET
#undef NAME
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) x##_avx2
#include "_kernel_layers.h"
#undef TARGET
#undef NAME
#define TARGET __attribute__((target("avx512f,avx512vl,fma"))) /* twice as many registers, used as vectors of eight */
#define NAME(x) x##_avx512
#include "_kernel_layers.h"
#undef TARGET
#undef NAME
#endif

#if defined(__x86_64__)
#define BEST(name) (kasync_level(-1) == 2 ? name##_avx512 : kasync_level(-1) == 1 ? name##_avx2 : name##_plain)
#else
#define BEST(name) name##_plain
#endif

static Shape shape_of(const long *given) { /* outputs, inputs, kernel_height, kernel_width, height, width */
    return (Shape){given[0], given[1], given[2], given[3],
                   given[4], given[5], given[4] - given[2] + 1, given[5] - given[3] + 1};
}

/* y [samples, outputs, out_height, out_width] = x [samples, inputs, height, width] convolved, plus bias or NULL;
 * out_width is 8 or more. */
int kasync_convolve(const float *x, const float *weights, const float *bias, long samples, const long *given,
                    float *y) {
    const Shape shape = shape_of(given);
    const long vectors = (shape.out_width + 7) / 8, size = shape.inputs * shape.kernel_height * shape.kernel_width;
    long *places = malloc(vectors * sizeof(long)); /* the last eight columns overlap those before */
    if (!places) return 1;
    for (long v = 0; v < vectors; v++) places[v] = v < vectors - 1 ? 8 * v : shape.out_width - 8;
    void (*const convolve)(const float *, const float *, const float *, Shape, const long *, int, int, float *) =
        BEST(convolve);
    for (long s = 0; s < samples; s++)
        for (long o = 0; o < shape.outputs; o += ABREAST)
            for (long row = 0; row < shape.out_height; row++)
                for (long v = 0; v < vectors; v += VECTORS)
                    convolve(x + (s * shape.inputs * shape.height + row) * shape.width, weights + o * size,
                             bias ? bias + o : NULL, shape, places + v,
                             shape.outputs - o < ABREAST ? shape.outputs - o : ABREAST,
                             vectors - v < VECTORS ? vectors - v : VECTORS,
                             y + ((s * shape.outputs + o) * shape.out_height + row) * shape.out_width);
    free(places);
    return 0;
}

/* rows [clients]: to where each client's gradient of weights [outputs, inputs, kernel_height, kernel_width] goes, and
 * of the bias where there is one, from its samples x and the gradient of their result. 0, or 1 when there is no
 * memory. */
int kasync_weights(const float *x, const float *grad, long clients, long samples, const long *given, int has_bias,
                   float *const *rows) {
    const Shape shape = shape_of(given);
    const long padded = (shape.out_width + 7) / 8 * 8, lines = samples * shape.outputs * shape.out_height;
    const long picture = shape.inputs * shape.height * shape.width;
    const long size = shape.inputs * shape.kernel_height * shape.kernel_width;
    float *pictures = malloc((samples * picture + 8) * sizeof(float)); /* 8 more, which padding multiplies by 0 */
    float *grads = malloc((lines * padded + 1) * sizeof(float));       /* [samples, outputs, out_height, padded] */
    const int failed = !pictures || !grads;
    for (long client = 0; !failed && client < clients; client++) {
        memcpy(pictures, x + client * samples * picture, samples * picture * sizeof(float));
        memset(pictures + samples * picture, 0, 8 * sizeof(float));
        memset(grads, 0, lines * padded * sizeof(float));
        for (long line = 0; line < lines; line++)
            memcpy(grads + line * padded, grad + (client * lines + line) * shape.out_width,
                   shape.out_width * sizeof(float));
        float *bias = has_bias ? rows[client] + shape.outputs * size : NULL;
        BEST(weights)(pictures, grads, shape, padded, samples, rows[client], bias);
    }
    free(pictures);
    free(grads);
    return failed;
}

/* The same for a dense layer: x [clients, samples, inputs], grad [clients, samples, outputs]. */
int kasync_dense(const float *x, const float *grad, long clients, long samples, long inputs, long outputs,
                 int has_bias, float *const *rows) {
    const long most = TILE / (samples ? samples : 1) / 16 * 16, broadest = most > 16 ? most : 16;
    float *tile = malloc((samples * broadest + 1) * sizeof(float));
    float *packed = malloc((samples * outputs + 1) * sizeof(float));
    const int failed = !tile || !packed;
    for (long client = 0; !failed && client < clients; client++)
        BEST(dense)(x + client * samples * inputs, grad + client * samples * outputs, inputs, outputs, samples,
                    broadest, tile, packed, rows[client], has_bias ? rows[client] + outputs * inputs : NULL);
    free(tile);
    free(packed);
    return failed;
}

/* y [lines, width / 2] = the largest of every 2 x 2 of x [2 * lines, width]; a NaN is larger than all. */
int kasync_pool(const float *x, long lines, long width, float *y) {
    BEST(pool)(x, lines, width, y);
    return 0;
}

/* back [2 * lines, width] = the gradient of y at the first of those equal to it, 0 elsewhere. */
int kasync_unpool(const float *x, const float *y, const float *grad, long lines, long width, float *back) {
    BEST(unpool)(x, y, grad, lines, width, back);
    return 0;
}
