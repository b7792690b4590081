/* The tool that is executed: a static program of ordinary size that does nothing. */
int main(void) { return 0; }
