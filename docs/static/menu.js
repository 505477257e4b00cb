// The menu's sections fold; the one of this page is open. Without scripts all of them are.
addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll(".bd-sidebar-primary p.caption")) {
    const list = caption.nextElementSibling;
    const fold = (open) => {
      list.hidden = !open;
      caption.setAttribute("aria-expanded", open);
    };
    fold(list.querySelector(".current") !== null || caption.textContent.trim() === "Start");
    caption.tabIndex = 0;
    caption.addEventListener("click", () => fold(list.hidden));
    caption.addEventListener("keydown", (pressed) => {
      if (pressed.key === "Enter") fold(list.hidden);
    });
  }
});
