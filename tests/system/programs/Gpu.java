import java.util.ArrayList;
import java.util.concurrent.Executors;

public class Gpu {
    static native int begin();
    static native long take(long bytes);
    static native int give(long address);

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        try (Closing threads = new Closing()) {
            // Contexts are a thread's: all of it on one that the JVM made.
            threads.pool.submit(() -> {
                System.out.println("begin " + begin());
                for (int round = 0; round < 3; round++) {
                    ArrayList<Long> pieces = new ArrayList<>();
                    long address;
                    while ((address = take(1L << 30)) > 0)
                        pieces.add(address);
                    System.gc();
                    int wrong = 0;
                    for (long piece : pieces)
                        wrong += give(piece);
                    System.out.println(pieces.size() + " " + -address + " " + wrong);
                }
            }).get();
        }
    }

    static class Closing implements AutoCloseable {
        final java.util.concurrent.ExecutorService pool = Executors.newFixedThreadPool(1);
        public void close() { pool.shutdown(); }
    }
}
