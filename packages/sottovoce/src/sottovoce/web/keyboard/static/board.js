// A phone keyboard, drawn: letters, or digits and marks. It shifts by itself where a sentence begins.

const LETTERS = ["qwertyuiop", "asdfghjkl", "⇧zxcvbnm⌫"], MARKS = ["1234567890", "-/:;()&@\"", "#%+=?!'⌫"];
const NAMES = { "⇧": "shift", "⌫": "delete", " ": "space", "\n": "new line" };

// `press` gets the text of a key, or null to delete.
export function drawBoard(node, press) {
  let marks = false, shift = true;

  function key(text, shown = text) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", tabIndex: -1, textContent: shown, ariaLabel: NAMES[text] ?? text });
    made.dataset.key = NAMES[text] ?? text;
    made.addEventListener("pointerdown", (event) => event.preventDefault()); // the field keeps the caret
    made.addEventListener("click", () => {
      if (text === "⇧") shift = !shift;
      else if (text.length > 1) marks = !marks;
      else return press(text === "⌫" ? null : text);
      draw();
    });
    return made;
  }

  function draw() {
    const upper = shift && !marks;
    const rows = (marks ? MARKS : LETTERS).map((row) => Array.from(upper ? row.toUpperCase() : row, (text) => key(text)));
    rows.push([key(marks ? "abc" : "123"), key(","), key(" ", "space"), key("."), key("\n", "⏎")]);
    node.replaceChildren(...rows.map((keys) => {
      const row = document.createElement("div");
      row.append(...keys);
      return row;
    }));
    node.classList.toggle("upper", upper);
  }

  draw();
  return {
    // The text before the caret.
    follow(before) {
      const first = /(^|[.!?…]\s+|\n\s*)$/u.test(before);
      if (first === shift) return;
      shift = first;
      draw();
    },
  };
}
