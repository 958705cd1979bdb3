/** Requests of which only the latest counts, and their repetition while the server is away. */

const LONGEST_WAIT = 15; // seconds between two attempts

export class Requests {
  failures = 0; // attempts in a row that failed
  #latest = 0; // number of the latest request
  #running = null;
  #later = 0;
  #retry = 0;

  /** Whether a request is under way. */
  get busy() {
    return this.#running !== null;
  }

  /** Abort the request that is under way, and drop those that wait. */
  stop() {
    clearTimeout(this.#later);
    clearTimeout(this.#retry);
    this.#running?.abort();
    this.#running = null;
    this.#latest++;
  }

  /** Run `task` after `delay` milliseconds without another call. */
  later(task, delay) {
    this.stop();
    if (delay) this.#later = setTimeout(task, delay);
    else task();
  }

  /** Run `task` after `wait` seconds, else after a pause that doubles per failure. `now()` runs it at once. */
  retry(task, wait) {
    const seconds = wait || Math.min(LONGEST_WAIT, 2 ** this.failures);
    this.failures++;
    const now = () => {
      clearTimeout(this.#retry);
      task();
    };
    clearTimeout(this.#retry);
    this.#retry = setTimeout(now, 1000 * seconds);
    return { wait: seconds, now };
  }

  /** The answer of `send(signal)`; null if a newer request was made. */
  async send(send) {
    this.stop();
    const number = this.#latest;
    this.#running = new AbortController();
    try {
      const answer = await send(this.#running.signal);
      if (number !== this.#latest) return null;
      this.#running = null;
      return answer;
    } catch (error) {
      if (error.name === "AbortError" || number !== this.#latest) return null;
      this.#running = null;
      throw error;
    }
  }
}
