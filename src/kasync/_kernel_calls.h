/* The functions that _kernel_module.c offers to Python; what they do stands where they are defined. */
int kasync_level(int limit);
int kasync_gram(const void *const *rows, long count, long width, int is_double, long threads, double *gram);
int kasync_combine(const void *const *rows, long count, long width, int is_double, long threads,
                   const double *coefficients, long n, const void *start, double rate, long doubtful, void *out);
int kasync_add_rows(const float *const *rows, long count, long width, const double *coefficients, long threads,
                    double *out);
int kasync_convolve(const float *x, const float *weights, const float *bias, long samples, const long *shape, float *y);
int kasync_weights(const float *x, const float *grad, long clients, long samples, const long *shape, int has_bias,
                   float *const *rows);
int kasync_dense(const float *x, const float *grad, long clients, long samples, long inputs, long outputs, int has_bias,
                 float *const *rows);
int kasync_pool(const float *x, long lines, long width, float *y);
int kasync_unpool(const float *x, const float *y, const float *grad, long lines, long width, float *back);
