/* The workloads through ScaLAPACK's PBLAS, over block-cyclic matrices of single precision.
 *
 *     scalapack WORKLOAD FOLDER RANKS MPI,GRID,BLOCK,PANEL
 *
 * MPI is for who starts it, GRID is ROWSxCOLUMNS of processes, BLOCK the edge of the blocks that
 * matrices are dealt out in, PANEL how many columns the PBLAS multiply at a time: their own
 * choice, 32, starves BLAS.
 *
 * A .npy file has rows first and Fortran wants columns first, so each file is read as its
 * matrix's transpose, and the transposed problem is solved: (A B)' = B' A'. No byte is reordered
 * but by what distributes it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

void Cblacs_pinfo(int *me, int *n);
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
int numroc_(const int *n, const int *block, const int *at, const int *first, const int *parts);
void descinit_(int *desc, const int *m, const int *n, const int *mb, const int *nb,
               const int *row, const int *column, const int *context, const int *ld, int *info);
void psgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k,
             const float *alpha, const float *a, const int *ia, const int *ja, const int *desca,
             const float *b, const int *ib, const int *jb, const int *descb, const float *beta,
             float *c, const int *ic, const int *jc, const int *descc);

static int context, grid_rows, grid_columns, row, column, block, panel;
static const char *folder;

/* The PBLAS ask this function how many rows or columns to multiply at a time. */
int pilaenv_(const int *ctxt, const char *precision) {
    (void)ctxt, (void)precision;
    return panel;
}

typedef struct {
    int m, n, rows, columns; /* of all, and here */
    float *data;
    int desc[9];
} Matrix;

static void fail(const char *what) {
    fprintf(stderr, "scalapack: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static const int zero = 0, one = 1;

static Matrix distributed(int m, int n) {
    Matrix x = {.m = m, .n = n};
    int info;
    x.rows = numroc_(&m, &block, &row, &zero, &grid_rows);
    x.columns = numroc_(&n, &block, &column, &zero, &grid_columns);
    int ld = x.rows > 1 ? x.rows : 1;
    descinit_(x.desc, &m, &n, &block, &block, &zero, &zero, &context, &ld, &info);
    if (info) fail("descinit refuses the matrix");
    size_t bytes = sizeof(float) * (size_t)ld * (x.columns > 1 ? x.columns : 1);
    if (posix_memalign((void **)&x.data, 64, bytes)) fail("out of memory");
    memset(x.data, 0, bytes);
    return x;
}

/* Where the local row or column lies in the whole matrix. */
static int64_t whole(int local, int at, int parts) {
    return (int64_t)(local / block * parts + at) * block + local % block;
}

/* The payload of a .npy file, and its shape if asked for. */
static const char *mapped(const char *name, const char *type, int *rows, int *columns) {
    char path[4096];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &info)) fail("cannot read an input");
    const char *bytes = mmap(NULL, info.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED) fail("cannot map an input");
    const unsigned char *head = (const unsigned char *)bytes;
    const char *shape = memmem(bytes, 128, "'shape': (", 10);
    if (memcmp(bytes, "\x93NUMPY\x01", 7) || !memmem(bytes, 128, type, strlen(type)) || !shape ||
        (rows && sscanf(shape + 10, "%d, %d)", rows, columns) != 2))
        fail("an input is not the .npy file expected");
    return bytes + 10 + head[8] + 256 * head[9];
}

/* The transpose of a matrix in a file. */
static Matrix read_matrix(const char *name) {
    int m, n;
    const float *all = (const float *)mapped(name, "'<f4'", &n, &m);
    Matrix x = distributed(m, n);
    for (int j = 0; j < x.columns; j++)
        for (int i = 0; i < x.rows; i += block) {
            int64_t from = whole(j, column, grid_columns) * m + whole(i, row, grid_rows);
            size_t length = x.rows - i < block ? x.rows - i : block;
            memcpy(x.data + (size_t)j * x.rows + i, all + from, length * sizeof(float));
        }
    return x;
}

static void multiply(const Matrix *a, const Matrix *b, float beta, Matrix *c) {
    const float alpha = 1;
    psgemm_("N", "N", &c->m, &c->n, &a->n, &alpha, a->data, &one, &one, a->desc, b->data, &one,
            &one, b->desc, &beta, c->data, &one, &one, c->desc);
}

/* left · R · right, where R is the transpose of x. */
static double checksum(const Matrix *x) {
    const double *left = (const double *)mapped("left", "'<f8'", NULL, NULL);
    const double *right = (const double *)mapped("right", "'<f8'", NULL, NULL);
    double sum = 0, total;
    for (int j = 0; j < x->columns; j++) {
        double line = 0;
        for (int i = 0; i < x->rows; i++)
            line += x->data[(size_t)j * x->rows + i] * right[whole(i, row, grid_rows)];
        sum += line * left[whole(j, column, grid_columns)];
    }
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return total;
}

int main(int argc, char **argv) {
    int me, ranks;
    MPI_Init(&argc, &argv);
    if (argc != 5) fail("usage: WORKLOAD FOLDER RANKS MPI,GRID,BLOCK,PANEL");
    int chain = strcmp(argv[1], "matmul") != 0;
    folder = argv[2];
    if (sscanf(argv[4], "%*[a-z],%dx%d,%d,%d", &grid_rows, &grid_columns, &block, &panel) != 4)
        fail("the option is MPI,ROWSxCOLUMNS,BLOCK,PANEL");
    Cblacs_pinfo(&me, &ranks);
    if (ranks != grid_rows * grid_columns) fail("the grid does not have as many processes");
    Cblacs_get(0, 0, &context);
    Cblacs_gridinit(&context, "Row", grid_rows, grid_columns);
    Cblacs_gridinfo(context, &grid_rows, &grid_columns, &row, &column);

    Matrix a = read_matrix("a"), b = read_matrix("b"), c, d, e, de, r = distributed(b.m, a.n);
    if (chain) {
        c = read_matrix("c"), d = read_matrix("d"), e = read_matrix("e");
        de = distributed(e.m, d.n);
    }
    if (me == 0) printf("{\"ready\": true}\n"), fflush(stdout);
    for (;;) {
        char line[64] = "";
        if (me == 0 && fgets(line, sizeof line, stdin) == NULL) line[0] = 0;
        MPI_Bcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
        int turns = 1;
        double seconds = 0;
        if (strncmp(line, "run", 3) == 0) {
            sscanf(line, "run %d", &turns);
            for (int turn = 0; turn < turns; turn++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double start = MPI_Wtime();
                multiply(&b, &a, 0, &r);
                if (chain) {
                    multiply(&e, &d, 0, &de);
                    multiply(&de, &c, 1, &r);
                }
                MPI_Barrier(MPI_COMM_WORLD);
                seconds += MPI_Wtime() - start;
            }
            if (me == 0) printf("{\"seconds\": %.9f}\n", seconds / turns);
        } else if (strncmp(line, "answer", 6) == 0) {
            double found = checksum(&r);
            char *(*config)(void) = (char *(*)(void))dlsym(RTLD_DEFAULT, "openblas_get_config");
            if (me == 0)
                printf("{\"checksum\": %.17g, \"blas\": \"%s\"}\n", found, config ? config() : "");
        } else {
            break;
        }
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
